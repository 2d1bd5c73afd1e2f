"""Derive in a process of its own: `python -m export.optimize FOLDER ALONE BESIDE BYTES NICENESS`.

Standard input is an encoder of so many bytes and behind it a decoder, or nothing, as in their files. So a
service gives back the memory that deriving takes, and never imports what it takes.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from google.protobuf.message import DecodeError

from export.optimize.derive import derive

PR_SET_PDEATHSIG = 1  # of Linux' prctl


def main() -> None:
    """Derive from standard input; ends with one line and status 2 where that cannot be done."""
    if sys.platform == "linux":  # nobody waits for it once the process that asked for it has ended
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folder, (alone, beside, length, niceness) = Path(sys.argv[1]), map(int, sys.argv[2:])
    if niceness:
        os.nice(niceness)
    try:
        encoder, decoder = sys.stdin.buffer.read(length), sys.stdin.buffer.read()
        derive(encoder, decoder, folder, (alone, beside))
    except (DecodeError, ValueError, OSError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
