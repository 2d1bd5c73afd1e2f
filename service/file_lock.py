"""One process at a time, by a lock that the system takes back from a process that dies."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """A file that no other process has locked meanwhile, opened to be read and appended to.

    Whoever waits blocks its thread, so a process does only little while it has the lock.

    Raises:
        OSError: the file cannot be opened.
    """
    import fcntl  # Windows has none, and only one process of a service

    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
