"""Files that are replaced at once: whoever reads one finds what was there before, or all that is new."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_file(path: Path, suffix: str = "partial") -> Iterator[Path]:
    """A file beside this one to write to, which takes its place at the end.

    After an error nothing is left of it, and an OSError names the file that was asked for. What a killed
    process leaves is replaced by the next write, so no two may write the same file at once, unless each has
    a suffix of its own.
    """
    aside = path.with_name(f".{path.name}.{suffix}")
    try:
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in {None, str(aside)}:
            error.filename, error.filename2 = str(path), None  # None: of a disk that became full
        raise


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file, text as UTF-8."""
    with atomic_file(path) as aside:
        aside.write_bytes(content.encode() if isinstance(content, str) else content)
