"""Signals that end a training with a checkpoint."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 1.0  # a Ctrl-C that comes sooner is the same one: `timeout --signal INT` sends it twice


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """A list that is empty until SIGINT, SIGTERM or SIGHUP arrives.

    A SIGINT that comes `AGAIN_S` or more after the first signal, whichever that was, interrupts at once. A
    later SIGTERM does not: `timeout` sends it twice, and Python may hear the second one only after a long
    step. SIGHUP comes when the terminal is closed, from bash and from the kernel; under nohup it is ignored,
    and stays so.
    """
    received: list[int] = []
    arrived_at = 0.0

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal arrived_at
        if not received:
            arrived_at = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() >= arrived_at + AGAIN_S:
            signal.signal(number, previous[number])
            signal.raise_signal(number)
        received.append(number)

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
