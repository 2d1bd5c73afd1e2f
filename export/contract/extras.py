"""What a command says where the packages that it needs are not installed: one line, and status 2.

Imports nothing but the standard library.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

OURS = frozenset({"capsnet", "training", "export", "service"})
SERVING = "'.[cpu]', or '.[gpu]' for an NVIDIA GPU"
TRAINING = "'.[train,cpu]'"


@contextmanager
def naming_the_extra(command: str, extra: str) -> Iterator[None]:
    """End the process where the block imports a package that is not installed.

    Args:
        command: that the user called.
        extra: what brings the package: SERVING or TRAINING.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in OURS:
            raise
        sys.stderr.write(f"{command} needs {package}: pip install -e {extra}\n")
        sys.exit(2)
