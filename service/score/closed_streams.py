"""A process that was started without standard streams, as by `2>&-`."""

import os
import sys


def stand_in_for_closed_streams() -> None:
    """Take the places of standard streams that are closed, before a file that is opened does.

    Words for a closed stderr go nowhere. `sys.stdin` and `sys.stdout` stay None where they are closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open as long as the process
