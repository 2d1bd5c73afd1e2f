"""A folder in which one process works at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, refusal: str, wait_s: float = 0) -> Iterator[None]:
    """Hold a folder's lock, which ends with the process at the latest; the folder is made if it is missing.

    Args:
        folder: what is locked.
        refusal: the error's text.
        wait_s: how long to wait for another process to release it.

    Raises:
        ValueError: another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=wait_s)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(refusal) from None
    try:
        yield
    finally:
        lock.release()
