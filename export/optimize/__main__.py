"""Derive in a process of its own: `python -m export.optimize FOLDER ALONE BESIDE BYTES AGAIN`.

Standard input is an encoder of so many bytes and behind it a decoder, or nothing, as in their files. AGAIN is
1 to measure a plan again that was measured under load, at the lowest priority, else 0. So a service gives
back the memory that deriving takes, and never imports what it takes.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from google.protobuf.message import DecodeError

from export.optimize.derive import derive

PR_SET_PDEATHSIG = 1  # of Linux' prctl
LOWEST_PRIORITY = 19  # what else the machine has to do goes first


def main() -> None:
    """Derive from standard input; ends with one line and status 2 where that cannot be done."""
    if sys.platform == "linux":  # nobody waits for it once the process that asked for it has ended
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folder, (alone, beside, length, again) = Path(sys.argv[1]), map(int, sys.argv[2:])
    if again:
        os.nice(LOWEST_PRIORITY)
    try:
        encoder, decoder = sys.stdin.buffer.read(length), sys.stdin.buffer.read()
        derive(encoder, decoder, folder, (alone, beside), again=bool(again))
    except (DecodeError, ValueError, OSError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
