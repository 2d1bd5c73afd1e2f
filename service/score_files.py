"""The pictures that files, folders and patterns stand for, found as scoring goes on."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from service.score_query import ScoreError, Skipped

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"})


def find_pictures(arguments: Sequence[str]) -> Iterator[Path]:
    """The pictures of all arguments, in their order; folders are read as it goes.

    Raises:
        ScoreError: there is no such file or folder, or no picture at all; before the first picture is given.
    """
    pictures = chain.from_iterable([_expand(argument) for argument in arguments])
    first = next(pictures, None)
    if first is None:
        raise ScoreError(f"no picture ({', '.join(sorted(SUFFIXES))}) in {', '.join(arguments)}")
    return chain([first], pictures)


def _expand(argument: str) -> Iterable[Path]:
    path = Path(argument)
    if argument and path.is_dir():
        return walk(path)
    if argument and path.exists():  # before patterns: a file may be called [7].png
        return [path]
    if not glob.has_magic(argument):
        raise ScoreError(f"{argument!r}: no such file or folder")
    matches = glob.iglob(argument, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute patterns
    found = sorted(path for path in map(Path, matches) if _is_picture_name(path.name) and not path.is_dir())
    if not found:
        raise ScoreError(f"{argument!r} matches no picture ({', '.join(sorted(SUFFIXES))})")
    return found


def walk(folder: Path) -> Iterator[Path]:
    """Pictures in a folder and its subfolders, by name; one folder's names are in memory at a time and level.

    Links to files are followed, links to folders are not: they may lead round in circles.
    """
    try:
        with os.scandir(folder) as entries:
            found = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _wanted(entry)
            )
    except OSError:
        yield folder  # reading it as a picture fails as well, and is reported like any other bad file
        return
    for name, is_folder in found:
        if is_folder:
            yield from walk(folder / name)
        else:
            yield folder / name


def _wanted(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return not entry.name.startswith(".")
    return _is_picture_name(entry.name) and (entry.is_file() or entry.is_symlink())  # no pipes, no sockets


def _is_picture_name(name: str) -> bool:
    """Whether it looks like a picture; `._7.png` is what macOS leaves beside 7.png and is none."""
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def in_batches(pictures: Iterator[Path], size: int) -> Iterator[list[Path]]:
    """The pictures in lists of `size`, the last one shorter."""
    while batch := list(islice(pictures, size)):
        yield batch


def read_file(path: Path) -> bytes | Skipped:
    """The file's bytes, or why they cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        return Skipped(path, error.strerror or str(error))
