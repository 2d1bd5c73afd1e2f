"""Errors of a full disk, which name no file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(place: Path) -> Iterator[None]:
    """An OSError without a file's name gets this place's."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(place)
        raise
