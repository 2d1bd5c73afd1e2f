"""Finds a data set's files in its folder, and reads them, plain or gzip-compressed."""

import gzip
import shlex
import zipfile
import zlib
from pathlib import Path
from typing import Literal

MAX_DIMENSIONS = 32  # of an array; NumPy 2 could have 64
# Zipfile raises RuntimeError for what is encrypted, and a subclass for an unknown compression.
ZIP_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


class MissingDataError(FileNotFoundError):
    """A data set is missing; says where it was looked for and how to get it."""


def find(folder: Path, *names: str, brought_by: Literal["download", "make"] = "download") -> Path:
    """The first of these files that exists in a data set's folder.

    Args:
        folder: named as `capsnet-train download` or `make` names it (`data/mnist`).
        names: what the file may be called, the best first.
        brought_by: which of the two brings the data set.

    Raises:
        MissingDataError: none is there.
    """
    for name in names:
        if (folder / name).exists():
            return folder / name
    folder = folder.absolute()  # not resolved: a link's own name is the data set's
    if len(names) == 1:
        missing = f"{names[0]} is not in"
    elif len(names) == 2:
        missing = f"neither {names[0]} nor {names[1]} is in"
    else:
        missing = f"none of {', '.join(names)} is in"
    command = f"capsnet-train {brought_by} {folder.name} --data {shlex.quote(str(folder.parent))}"
    raise MissingDataError(f"{missing} {folder}; {brought_by} it with: {command}")


def remedy_beside(path: Path, *names: str) -> str:
    """What helps if what `find` chose is damaged: another one of these that lies beside it; "" for none."""
    others = [name for name in names if name != path.name and (path.parent / name).exists()]
    return f"; remove {path.name} to read {others[0]} beside it" if others else ""


def read_content(path: Path) -> bytes:
    """What a file holds, decompressed if its name ends in .gz.

    Raises:
        ValueError: its gzip stream is damaged or ends early; names the file.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except EOFError:
        raise ValueError(f"{path} is truncated: its gzip stream ends early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a sound gzip file: {error}") from None
