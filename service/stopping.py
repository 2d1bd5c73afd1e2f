"""Signals that ask a service to stop, and ends of the process that are no failure."""

import logging
import os
import signal


def stop_signals() -> list[signal.Signals]:
    """Those that ask to stop; not that of a closed terminal where `nohup` has it ignored."""
    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    return asked


def leave_at_signals() -> None:
    """From now on such a signal ends the process at once, with status 0.

    An exception instead would surface wherever the process is: in an import, or in a library that reports it.
    """
    for number in stop_signals():
        signal.signal(number, lambda *_: os._exit(0))


def leave() -> None:
    """End the process with status 0 once its log is written, whatever its threads are at."""
    logging.shutdown()
    os._exit(0)
