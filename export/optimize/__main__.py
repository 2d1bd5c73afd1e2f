"""`python -m export.optimize FOLDER ALONE BESIDE < encoder.onnx`: derive in a process of its own.

So a service gives back the memory that deriving takes, and never imports what it takes.
"""

import sys
from pathlib import Path

from google.protobuf.message import DecodeError

from export.optimize.derive import derive


def main() -> None:
    """Derive from standard input; ends with one line and status 2 where that cannot be done."""
    folder, alone, beside = sys.argv[1:]
    try:
        derive(sys.stdin.buffer.read(), Path(folder), (int(alone), int(beside)))
    except (DecodeError, ValueError, OSError) as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
