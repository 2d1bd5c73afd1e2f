"""One process at a time, by a lock that the system takes back from a process that dies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Wait for other processes that have this lock, a file that is gone when nobody has it.

    Raises:
        OSError: the file cannot be made.
    """
    try:
        import fcntl
    except ImportError:  # Windows: there nobody waits
        yield
        return
    while True:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(lock, file):
                continue  # whoever had it has removed it while we waited, and somebody may have a new one
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _is_at(path: Path, file: TextIO) -> bool:
    """Whether the path still leads to the file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False
