"""Signals that ask a service to stop, and exits of the process that are not failures.

The command line imports this first, so it imports next to nothing itself.
"""

import os
import signal


def stop_signals() -> list[signal.Signals]:
    """Those that ask to stop; not SIGHUP where it is held, or ignored, as by `nohup`."""
    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and not _is_ignored_or_held(signal.SIGHUP):
        asked.append(signal.SIGHUP)
    return asked


def hold_hangups() -> None:
    """SIGHUP does not ask to stop, but for something else; until `take_hangups`, one that comes waits.

    Threads and processes that are started meanwhile hold it, too.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])


def take_hangups() -> None:
    """SIGHUP has a handler now; one that has come before is handled at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])


def leave_at_signals(*, is_logging: bool = False) -> None:
    """From now on such a signal ends the process at once, with status 0.

    An exception instead would surface anywhere: in an import, or in a library that reports it.

    Args:
        is_logging: write the log first; a second signal does not wait for that.
    """
    for number in stop_signals():
        signal.signal(number, lambda *_: leave() if is_logging else os._exit(0))


def _is_ignored_or_held(number: signal.Signals) -> bool:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])  # adds none, and returns those that are
    return number in held or signal.getsignal(number) is signal.SIG_IGN


def leave() -> None:
    """End the process with status 0 once its log is written, whatever its threads are doing."""
    leave_at_signals()  # nobody may be reading the log: a second signal ends the wait
    try:
        import logging  # late: importing it takes time, and by now it is imported

        logging.shutdown()
    finally:
        os._exit(0)
