"""The pictures of files, folders, patterns, archives, Parquet files and lists.

They are found while others are scored, in an order that depends only on the arguments and on what is on disk:
a resumed run finds them in the same order.
"""

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain, starmap
from pathlib import Path

from service.score.archives import TAR_SUFFIXES, ZIP_SUFFIXES, in_tar, in_zip
from service.score.picture_stream import (
    SUFFIXES,
    Picture,
    PictureStream,
    check_bytes,
    is_picture_name,
    unreadable,
)
from service.score.query import ScoreError

PARQUET_SUFFIXES = (".parquet", ".pq")
CONTAINER_SUFFIXES = TAR_SUFFIXES + ZIP_SUFFIXES + PARQUET_SUFFIXES
STDIN = "-"


@dataclass(frozen=True)
class Sources:
    """Where the pictures are.

    Attributes:
        paths: files, folders, patterns, archives and Parquet files.
        files_from: a text file of further paths, one per line, without patterns; `-` is stdin.
        image_column: the column of Parquet files with the pictures; default: the only one that can hold some.
        id_column: the column of Parquet files with the names of the rows; default: file and row number.
    """

    paths: Sequence[str]
    files_from: str | None = None
    image_column: str | None = None
    id_column: str | None = None

    def pictures(self) -> PictureStream:
        """The pictures, in the order of the paths.

        Raises:
            ScoreError: a file or folder does not exist, or there is no picture at all; or later, while
                iterating: a Parquet file lacks a column.
        """
        listed = self._listed() if self.files_from else ()
        pictures = PictureStream(chain.from_iterable(starmap(self._open, chain(self._named(), listed))))
        if pictures.peek() is None:
            places = [*self.paths, *([self.files_from] if self.files_from else [])]
            raise ScoreError(
                f"no picture ({', '.join(sorted(SUFFIXES))}) in {', '.join(places)}; to score archives and "
                "Parquet files in a folder, name them, as in 'set/*.tar'"
            )
        return pictures

    def pictures_known_by_name(self) -> Iterator[Picture]:
        """The pictures that are found without reading file contents.

        A tar archive or a Parquet file yields one placeholder. A list from a pipe is left out: it can be read
        only once.
        """
        given = self.files_from
        listed = self._listed() if given and given != STDIN and Path(given).is_file() else ()
        for path, list_name in chain(self._named(), listed):
            if _is_file(path, TAR_SUFFIXES + PARQUET_SUFFIXES):
                yield unreadable(str(path), "not read yet")
            else:
                yield from self._open(path, list_name)

    def are_countable(self) -> bool:
        """Whether the pictures can be counted without reading them."""
        return not self.files_from and not any(_is_container(path) for path in self.paths)

    def count(self) -> int:
        """The number of pictures; if they are countable, none is read."""
        return sum(1 for _ in self.pictures())

    def _named(self) -> Iterable[tuple[Path, None]]:
        """The existing paths of the arguments, as `_open` takes them."""
        found = [expand(argument) for argument in self.paths]
        if any(_is_file(path, PARQUET_SUFFIXES) for path in chain.from_iterable(found)):
            import_module("service.score.parquet")  # without pyarrow this fails now, not hours later
        return ((path, None) for path in chain.from_iterable(found))

    def _listed(self) -> Iterator[tuple[Path, str]]:
        """The paths in the list, as `_open` takes them; they need not exist."""
        assert self.files_from is not None
        from_stdin = self.files_from == STDIN
        list_name = "the list on stdin" if from_stdin else f"the list {self.files_from}"
        with nullcontext(sys.stdin.buffer) if from_stdin else Path(self.files_from).open("rb") as lines:
            for line in lines:
                if b"\0" in line:
                    raise ScoreError(
                        f"{list_name} holds a NUL byte; expected one path per line, not find -print0"
                    )
                if path := os.fsdecode(line.rstrip(b"\r\n")):
                    yield Path(path), list_name

    def _open(self, path: Path, list_name: str | None) -> Iterable[Picture]:
        """The pictures of one path; neighbors in a list are pairs, whatever their folders."""
        if _is_folder(path):
            return in_folder(path)
        name = path.name.lower()
        if name.endswith(TAR_SUFFIXES):
            return in_tar(path)
        if name.endswith(ZIP_SUFFIXES):
            return in_zip(path)
        if name.endswith(PARQUET_SUFFIXES):
            from service.score.parquet import in_parquet  # pyarrow is an extra

            return in_parquet(path, self.image_column, self.id_column)
        return [_file(path, list_name or str(path.parent))]


def expand(argument: str) -> Sequence[Path]:
    """The existing paths that an argument names or matches."""
    path = Path(argument)
    if argument and path.exists():  # before patterns: a file's name may be [7].png
        return [path]
    if not glob.has_magic(argument):
        raise ScoreError(f"{argument!r}: no such file or folder")
    matches = glob.iglob(argument, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute patterns
    found = sorted(path for path in map(Path, matches) if _may_match(path))
    if not found:
        raise ScoreError(f"{argument!r} matches no picture, archive or Parquet file")
    return found


def in_folder(folder: Path) -> Iterator[Picture]:
    """The pictures in a folder and its subfolders, by name; in memory are the names of one folder per level.

    Links to files are followed; links to folders are not, as they may form loops.
    """
    try:
        with os.scandir(folder) as entries:
            wanted = [
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _wanted(entry)
            ]
    except OSError as error:
        yield unreadable(str(folder), error.strerror or str(error))
        return
    for name, is_folder in sorted(wanted):
        if is_folder:
            yield from in_folder(folder / name)
        else:
            yield _file(folder / name, source=str(folder))


def _wanted(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return not entry.name.startswith(".")
    return is_picture_name(entry.name) and (entry.is_symlink() or entry.is_file())  # no pipes, no sockets


def _file(path: Path, source: str) -> Picture:
    return Picture(str(path), partial(_read_file, path), source)


def _read_file(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        check_bytes(os.fstat(file.fileno()).st_size, limit)
        return file.read()


def _may_match(path: Path) -> bool:
    """Whether the match of a pattern counts."""
    return (is_picture_name(path.name) or _is_container(path.name)) and not _is_folder(path)


def _is_file(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes) and not _is_folder(path)


def _is_folder(path: Path) -> bool:
    """False, where `Path.is_dir` raises, of what may not be looked at: reading it says why."""
    return os.path.isdir(path)  # noqa: PTH112


def _is_container(name: str) -> bool:
    return name.lower().endswith(CONTAINER_SUFFIXES)
