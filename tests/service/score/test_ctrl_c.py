"""Ctrl-C while an event loop runs."""

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import Future

import pytest

from service.score.ctrl_c import run_until_ctrl_c


class InterruptedFuture(Future):
    """Ctrl-C comes just as its result is handed over to the loop."""

    def result(self, timeout: float | None = None) -> object:
        signal.raise_signal(signal.SIGINT)
        return super().result(timeout)


async def interrupted_work() -> None:
    future: InterruptedFuture = InterruptedFuture()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await asyncio.wrap_future(future)
    await asyncio.sleep(30)


def test_work_that_ends_returns_its_result_and_leaves_ctrl_c_as_it_was():
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert run_until_ctrl_c(work()) == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_errors_of_the_work_come_out():
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_until_ctrl_c(work())


def test_ctrl_c_while_a_result_is_handed_over_is_reported_as_nothing_else(caplog):
    with pytest.raises(KeyboardInterrupt):
        run_until_ctrl_c(interrupted_work())
    assert caplog.records == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_lets_the_work_tidy_up():
    tidied = []

    async def work() -> None:
        try:
            await interrupted_work()
        finally:
            await asyncio.sleep(0)
            tidied.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_until_ctrl_c(work())
    assert tidied == [True]


BUSY = """
import asyncio, os, signal, threading, time
from service.score.ctrl_c import run_until_ctrl_c

def press_twice():
    os.kill(os.getpid(), signal.SIGINT)
    while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # the first one is not heard yet
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

async def work():
    threading.Timer(0.2, press_twice).start()
    time.sleep(60)

run_until_ctrl_c(work())
"""


def test_a_second_ctrl_c_does_not_wait_for_the_end_of_a_step():
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=50)
    assert done.returncode == -signal.SIGINT


STUBBORN = """
import asyncio, signal
from service.score.ctrl_c import run_until_ctrl_c

async def work():
    try:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(30)
    finally:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(30)

signal.signal(signal.SIGINT, signal.HANDLER)
run_until_ctrl_c(work())
print("done")
"""


def test_a_second_ctrl_c_does_not_wait_for_the_work():
    program = STUBBORN.replace("HANDLER", "default_int_handler")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert done.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in done.stderr


def test_ctrl_c_that_is_ignored_stays_ignored():
    program = STUBBORN.replace("HANDLER", "SIG_IGN").replace("sleep(30)", "sleep(0.01)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
