"""The base install is what the client needs; each command of an extra that is missing says which it is."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Refuses to import what is none of its arguments, our own or the standard library's; then runs the code.
BARE_PYTHON = """
import importlib.abc, json, sys
allowed, code = set(json.loads(sys.argv[1])), sys.argv[2]
class OnlyThese(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, OnlyThese())
sys.argv[:] = ["command"]
exec(code)
"""
EVERY_MODULE_OF_THE_CLIENT = """
import capsnet, importlib, pkgutil
for module in pkgutil.walk_packages(capsnet.__path__, "capsnet."):
    importlib.import_module(module.name)
print(capsnet.Client.__name__)
"""


def base_install() -> set[str]:
    """The distributions that `pip install .` brings, with all that they need themselves."""
    found: set[str] = set()
    left = [Requirement(text) for text in PROJECT["dependencies"]]
    while left:
        wanted = left.pop()
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if applies and (name := canonicalize_name(wanted.name)) not in found:
            found.add(name)
            left += map(Requirement, requires(name) or ())
    return found


def run_bare(code: str) -> subprocess.CompletedProcess[str]:
    """The code in a Python that imports only what the base install brings."""
    distributions = base_install()
    modules = [
        module
        for module, names in packages_distributions().items()
        if distributions & set(map(canonicalize_name, names))
    ]
    allowed = json.dumps([*modules, "capsnet", "training", "export", "service"])
    return subprocess.run(
        [sys.executable, "-c", BARE_PYTHON, allowed, code], capture_output=True, text=True, check=False
    )


def test_the_client_imports_only_what_the_base_install_brings():
    ran = run_bare(EVERY_MODULE_OF_THE_CLIENT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "Client\n", "")


def test_the_base_install_brings_no_server_no_runtime_and_no_torch():
    heavy = {"fastapi", "starlette", "uvicorn", "pydantic", "onnx", "onnxruntime", "torch", "tqdm"}
    assert "httpx" in base_install()
    assert not base_install() & heavy


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("capsnet-serve", ".[cpu]"),
        ("capsnet-score", ".[cpu]"),
        ("capsnet-train", ".[train,cpu]"),
        ("capsnet-export", ".[train,cpu]"),
    ],
)
def test_a_command_without_its_extra_names_it_in_one_line(command, extra):
    module, function = PROJECT["scripts"][command].split(":")
    ran = run_bare(f"import sys; from {module} import {function}; sys.exit({function}())")
    assert ran.returncode == 2  # 1 would say that capsnet-score has skipped some pictures
    [line] = ran.stderr.splitlines()
    assert re.match(rf"{command} needs [a-z_]+: pip install -e '{re.escape(extra)}'", line)


def test_the_servers_extras_differ_in_the_runtime_alone():
    extras = PROJECT["optional-dependencies"]
    assert extras["cpu"][0] == extras["gpu"][0] == "capsnet[service]"
    assert [Requirement(extras[name][1]).name for name in ("cpu", "gpu")] == [
        "onnxruntime",
        "onnxruntime-gpu",
    ]
