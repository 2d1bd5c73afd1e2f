"""`python -m export.optimize FOLDER EXCLUSIVE SHARED BYTES AGAIN ARCHITECTURE`: derive in a new process.

Standard input is an encoder of BYTES bytes, then a decoder, or nothing. EXCLUSIVE and SHARED are the threads
of a batch that has all cores, and of one that shares them. AGAIN is 1 to measure a plan again that was
measured under load, at the lowest priority, else 0. ARCHITECTURE is that of the manifest, as JSON. In a
process of its own, deriving returns its memory, and the service never imports onnx.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

from google.protobuf.message import DecodeError
from pydantic import TypeAdapter

from export.contract.architecture import StatedArchitecture
from export.optimize.derive import derive

PR_SET_PDEATHSIG = 1  # of Linux' prctl
LOWEST_PRIORITY = 19  # what else the machine has to do goes first


def main() -> None:
    """Derive from standard input; an error ends with one line and status 1."""
    if sys.platform == "linux":  # ends with the process that started it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    folder, (exclusive, shared, length, again) = Path(sys.argv[1]), map(int, sys.argv[2:6])
    if again:
        os.nice(LOWEST_PRIORITY)
    try:
        encoder, decoder = sys.stdin.buffer.read(length), sys.stdin.buffer.read()
        architecture: StatedArchitecture = TypeAdapter(StatedArchitecture).validate_json(sys.argv[6])
        derive(encoder, decoder, folder, (exclusive, shared), architecture, again=bool(again))
    except (DecodeError, ValueError, OSError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
