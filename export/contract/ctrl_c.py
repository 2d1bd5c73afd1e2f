"""Ctrl-C while a command is importing modules, when it starts or later."""

import os
import signal
import sys
from types import FrameType

STOPPED_BY_SIGNAL = 130  # what a shell gives a command that SIGINT ended
AGAIN_S = 0.05


def leave_quietly_in_imports() -> None:
    """From now on Ctrl-C ends the process at once and without words while it imports, else as before.

    An exception would surface in the import: some modules make an error of their own of it, and torch ends
    the process with a core dump. Where Ctrl-C is ignored, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave_or_interrupt)
        sys.unraisablehook = _interrupt_again


def _leave_or_interrupt(number: int, frame: FrameType | None) -> None:
    caller = frame
    while caller:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(STOPPED_BY_SIGNAL)
        if caller.f_code is _interrupt_again.__code__:
            break
        caller = caller.f_back
    if caller:  # in the hook Python would ignore the interrupt, too
        _interrupt_soon()
    else:
        signal.default_int_handler(number, frame)


def _interrupt_again(ignored: "sys.UnraisableHookArgs") -> None:
    """Where an interrupt came while an object was taken down, Python ignores it: let it come once more."""
    if ignored.exc_type is KeyboardInterrupt:
        _interrupt_soon()
    else:
        sys.__unraisablehook__(ignored)


def _interrupt_soon() -> None:
    """As Ctrl-C, by an alarm: it ends a sleep or a read, as `interrupt_main` does not."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
