"""Signals that ask a service to stop, and ends of the process that are no failure.

The command line imports this before all else: it imports next to nothing itself.
"""

import os
import signal


def stop_signals() -> list[signal.Signals]:
    """Those that ask to stop; not that of a closed terminal where `nohup` has it ignored."""
    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    return asked


def leave_at_signals(*, is_logging: bool = False) -> None:
    """From now on such a signal ends the process at once, with status 0.

    An exception instead would surface wherever the process is: in an import, or in a library that reports it.

    Args:
        is_logging: first the log is written; a second signal does not wait for that.
    """
    for number in stop_signals():
        signal.signal(number, lambda *_: leave() if is_logging else os._exit(0))


def leave() -> None:
    """End the process with status 0 once its log is written, whatever its threads are at."""
    leave_at_signals()  # where nobody reads the log, there may be a second signal
    try:
        import logging  # late: by now it is there, and at the start it would take time

        logging.shutdown()
    finally:
        os._exit(0)
