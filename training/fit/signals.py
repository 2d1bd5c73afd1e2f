"""Signals that end a training with a checkpoint."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """A list that is empty until SIGINT, SIGTERM or SIGHUP arrives; a second one interrupts at once.

    SIGHUP comes when the terminal is closed; under nohup it is ignored, and stays so.
    """
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, previous[number])

    heeded: list[int] = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        heeded.append(signal.SIGHUP)
    previous = {number: signal.getsignal(number) for number in heeded}  # known before one of them arrives
    try:
        for number in heeded:
            signal.signal(number, stop)
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
