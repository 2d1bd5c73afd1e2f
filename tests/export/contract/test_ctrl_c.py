import subprocess
import sys

import pytest

INTERRUPTED_IMPORT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{usual})
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["triton", "nowhere", "--out", "nowhere"]
from {package}.__main__ import main
main()
"""


def interrupted_import(package: str, module: str, usual: str = "default_int_handler"):
    code = INTERRUPTED_IMPORT.format(package=package, module=module, usual=usual)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["export", "training", "service.score"])
def test_ctrl_c_ends_a_command_that_is_being_imported_without_words(package):
    ended = interrupted_import(package, f"{package}.cli")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_so_it_does_when_the_command_imports_more_later():
    ended = interrupted_import("export", "export.triton")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_where_ctrl_c_is_ignored_the_command_runs():
    ended = interrupted_import("export", "export.cli", usual="SIG_IGN")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "capsnet-export: nowhere is not a folder\n"


IGNORED_INTERRUPT = """
import os, signal, time, weakref
from export.contract.ctrl_c import leave_quietly_in_imports

leave_quietly_in_imports()
{before}

class Thing: pass

thing = Thing()
watched = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
try:
    del thing
    time.sleep(3600)
    print("published")
except KeyboardInterrupt:
    print("removed")
"""

INTERRUPTED_HOOK = """
set_timer = signal.setitimer

def interrupt(*_):
    signal.setitimer = set_timer
    os.kill(os.getpid(), signal.SIGINT)

signal.setitimer = interrupt
"""


@pytest.mark.parametrize("before", ["", INTERRUPTED_HOOK], ids=["once", "and again in the hook"])
def test_where_python_ignores_the_exception_it_comes_once_more(before):
    """As in a weak reference's callback: the command would go on, sleep to the end, and publish."""
    code = IGNORED_INTERRUPT.format(before=before)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "removed\n", "")


def test_elsewhere_ctrl_c_is_an_exception():
    """So that what is half written can be removed."""
    code = (
        "import os, signal\n"
        "from export.contract.ctrl_c import leave_quietly_in_imports\n"
        "leave_quietly_in_imports()\n"
        "try: os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt: print('removed')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "removed\n", "")
