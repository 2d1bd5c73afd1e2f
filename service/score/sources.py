"""The pictures that files, folders, patterns, archives, Parquet files and lists stand for.

They are found as scoring goes on, in an order that depends on nothing but the arguments and what lies there:
a resumed run finds them in the same one.
"""

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from service.score.archives import TAR_SUFFIXES, ZIP_SUFFIXES, in_tar, in_zip
from service.score.pictures import SUFFIXES, Picture, check_bytes, is_picture_name
from service.score.query import ScoreError

PARQUET_SUFFIXES = (".parquet", ".pq")
CONTAINER_SUFFIXES = TAR_SUFFIXES + ZIP_SUFFIXES + PARQUET_SUFFIXES


@dataclass(frozen=True)
class Sources:
    """Where the pictures are.

    Attributes:
        paths: files, folders, patterns, archives and Parquet files.
        files_from: a text file of further paths, one a line, without patterns; `-` is stdin.
        image_column: the column of Parquet files with the pictures; default: the only one that can be it.
        id_column: the column of Parquet files that names the rows; default: their file and number.
    """

    paths: Sequence[str]
    files_from: str | None = None
    image_column: str | None = None
    id_column: str | None = None

    def pictures(self) -> Iterator[Picture]:
        """The pictures, in the order of the paths.

        Raises:
            ScoreError: there is no such file or folder, or no picture at all; before the first picture is
                given. Later, if a Parquet file has no such column.
        """
        listed = self._listed() if self.files_from else ()
        pictures = chain(chain.from_iterable([self._expand(path) for path in self.paths]), listed)
        first = next(pictures, None)
        if first is None:
            places = [*self.paths, *([self.files_from] if self.files_from else [])]
            raise ScoreError(
                f"no picture ({', '.join(sorted(SUFFIXES))}) in {', '.join(places)}; archives and Parquet "
                "files in folders are named themselves, as in 'set/*.tar'"
            )
        return chain([first], pictures)

    def are_countable(self) -> bool:
        """Whether the pictures can be counted without reading them."""
        return not self.files_from and not any(_is_container(path) for path in self.paths)

    def count(self) -> int:
        """How many pictures there are, of which only the names are looked at if they are countable."""
        return sum(1 for _ in self.pictures())

    def _expand(self, argument: str) -> Iterable[Picture]:
        path = Path(argument)
        if argument and path.exists():  # before patterns: a file may be called [7].png
            return self._open(path)
        if not glob.has_magic(argument):
            raise ScoreError(f"{argument!r}: no such file or folder")
        matches = glob.iglob(argument, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute patterns
        found = sorted(path for path in map(Path, matches) if _may_match(path))
        if not found:
            raise ScoreError(f"{argument!r} matches no picture, archive or Parquet file")
        return chain.from_iterable(map(self._open, found))

    def _open(self, path: Path) -> Iterable[Picture]:
        """The pictures that one existing path stands for."""
        if path.is_dir():
            return map(_file, walk(path))
        name = path.name.lower()
        if name.endswith(TAR_SUFFIXES):
            return in_tar(path)
        if name.endswith(ZIP_SUFFIXES):
            return in_zip(path)
        if name.endswith(PARQUET_SUFFIXES):
            from service.score.parquet import in_parquet  # pyarrow is an extra

            return in_parquet(path, self.image_column, self.id_column)
        return [_file(path)]

    def _listed(self) -> Iterator[Picture]:
        """What the list names; a path of it that is not there costs no other its row."""
        assert self.files_from is not None
        from_stdin = self.files_from == "-"
        with nullcontext(sys.stdin.buffer) if from_stdin else Path(self.files_from).open("rb") as lines:
            for line in lines:
                if path := os.fsdecode(line.rstrip(b"\r\n")):
                    yield from self._open(Path(path))


def walk(folder: Path) -> Iterator[Path]:
    """Pictures in a folder and its subfolders, by name; one folder's names are in memory at a time and level.

    Links to files are followed, links to folders are not: they may lead round in circles.
    """
    try:
        with os.scandir(folder) as entries:
            wanted = [
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _wanted(entry)
            ]
    except OSError:
        yield folder  # reading it as a picture fails as well, and is reported like any other bad file
        return
    for name, is_folder in sorted(wanted):
        if is_folder:
            yield from walk(folder / name)
        else:
            yield folder / name


def _wanted(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return not entry.name.startswith(".")
    return is_picture_name(entry.name) and (entry.is_file() or entry.is_symlink())  # no pipes, no sockets


def _file(path: Path) -> Picture:
    return Picture(str(path), partial(_read_file, path))


def _read_file(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        check_bytes(os.fstat(file.fileno()).st_size, limit)
        return file.read()


def _may_match(path: Path) -> bool:
    """Whether a pattern's match is taken."""
    return (is_picture_name(path.name) or _is_container(path.name)) and not path.is_dir()


def _is_container(name: str) -> bool:
    return name.lower().endswith(CONTAINER_SUFFIXES)
