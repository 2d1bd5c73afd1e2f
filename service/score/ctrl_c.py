"""Ctrl-C while an event loop runs."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_ctrl_c(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in which Ctrl-C cancels the work between two steps of the loop; a second one ends it.

    asyncio's own handler cancels within a step. Where that step hands over what a thread has returned, the
    loop reports an InvalidStateError (Python 3.11). Where Ctrl-C is ignored, it stays so.

    Raises:
        KeyboardInterrupt: Ctrl-C came.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return asyncio.run(work)
    try:
        return asyncio.run(_cancelled_at_ctrl_c(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancelled_at_ctrl_c(work: Coroutine[Any, Any, T]) -> T:
    before = signal.getsignal(signal.SIGINT)
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def cancel(*_: object) -> None:
        # At once, not by the loop: a second Ctrl-C need not wait for the end of a long step.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGINT, cancel)
    try:
        return await task
    finally:
        signal.signal(signal.SIGINT, before)
