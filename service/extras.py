"""What a command says where the packages that it needs are not installed: one line, and status 2.

Imports nothing but the standard library.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

OURS = frozenset({"capsnet", "export", "service"})


@contextmanager
def naming_the_extra(command: str) -> Iterator[None]:
    """End the process where the block imports a package that the base install does not bring."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in OURS:
            raise
        sys.stderr.write(
            f"{command} needs {package}: pip install -e '.[cpu]', or '.[gpu]' for an NVIDIA GPU\n"
        )
        sys.exit(2)
