"""The pictures of files, folders, patterns, archives, Parquet files and lists.

They are found while others are scored, in an order that depends only on the arguments and on what is on disk:
a resumed run finds them in the same order.
"""

import glob
import os
import stat
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, starmap
from pathlib import Path

from service.score.archives import TAR_SUFFIXES, ZIP_SUFFIXES, check_compression, in_tar, in_zip
from service.score.picture_stream import (
    SUFFIXES,
    Picture,
    PictureReadError,
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
            ScoreError: a file or folder does not exist, or there is no picture at all, or a column is named
                without a Parquet file; or later, while iterating: a Parquet file lacks a column.
        """
        listed = self._listed() if self.files_from else ()
        pictures = PictureStream(chain.from_iterable(starmap(self._open, chain(self._named(), listed))))
        if pictures.peek() is None:
            places = [*self.paths, *([self.files_from] if self.files_from else [])]
            fault = f"no picture ({', '.join(sorted(SUFFIXES))}) in {', '.join(places)}"
            if any(map(os.path.isdir, self.paths)):
                fault += "; to score archives and Parquet files in a folder, name them, as in 'set/*.tar'"
            raise ScoreError(fault)
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
        return not self.files_from and not any(
            map(_is_container, chain.from_iterable(map(expand, self.paths)))
        )

    def count(self) -> int:
        """The number of pictures; if they are countable, none is read."""
        return sum(1 for _ in self.pictures())

    def _named(self) -> Iterable[tuple[Path, None]]:
        """The existing paths of the arguments, as `_open` takes them."""
        found = [expand(argument) for argument in self.paths]  # strings: a Path takes several times as much

        def paths() -> Iterator[Path]:
            return map(Path, chain.from_iterable(found))

        if not self.files_from and not any(_is_file(path, PARQUET_SUFFIXES) for path in paths()):
            refuse_columns_of_nothing(self.image_column, self.id_column)
        for path in paths():  # what can be known now must not end the run hours later
            if _is_file(path, PARQUET_SUFFIXES):
                from service.score.parquet import check_columns  # pyarrow is an extra

                check_columns(path, self.image_column, self.id_column)
            elif _is_file(path, TAR_SUFFIXES):
                check_compression(path)
        return ((path, None) for path in paths())

    def _listed(self) -> Iterator[tuple[Path, str]]:
        """The paths in the list, as `_open` takes them; they need not exist."""
        assert self.files_from is not None
        from_stdin = self.files_from == STDIN
        list_name = "the list on stdin" if from_stdin else f"the list {self.files_from}"
        if from_stdin and sys.stdin is None:
            raise ScoreError("stdin, where the list would come from, is closed")
        with nullcontext(sys.stdin.buffer) if from_stdin else Path(self.files_from).open("rb") as lines:
            for number, line in enumerate(lines):
                if b"\0" in line:
                    raise ScoreError(
                        f"{list_name} holds a NUL byte; expected one path per line, not find -print0"
                    )
                mark = b"" if number else BOM_UTF8  # which Windows' editors put at the start
                if path := os.fsdecode(line.removeprefix(mark).rstrip(b"\r\n")):
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


def refuse_columns_of_nothing(image_column: str | None, id_column: str | None) -> None:
    """Where there is no Parquet file, columns of one are a mistake.

    Raises:
        ScoreError: one is named.
    """
    for option, given in (("--image-column", image_column), ("--id-column", id_column)):
        if given is not None:
            raise ScoreError(f"{option} is for Parquet files, and no path names one")


def expand(argument: str) -> Sequence[str]:
    """The existing paths that an argument names or matches, and folders that `**` could not look into."""
    if argument and Path(argument).exists():  # before patterns: a file's name may be [7].png
        return [str(Path(argument))]
    if not glob.has_magic(argument):
        raise ScoreError(f"{argument!r}: no such file or folder")
    unread: set[str] = set()
    found = {str(path) for path in map(Path, _matches(argument, unread)) if _may_match(path)} | unread
    if not found:
        raise ScoreError(f"{argument!r} matches no picture, archive or Parquet file")
    return sorted(found, key=lambda path: path.replace("/", "\0"))  # as in folders, level by level


def _matches(pattern: str, unread: set[str]) -> Iterator[str]:
    """What a pattern matches; `**` stands for any folders, but follows no links to them, unlike `glob`'s.

    The folders that it cannot look into are added to `unread`.
    """
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.iglob(pattern)  # noqa: PTH207  # Path.glob takes no absolute patterns
        return
    at = parts.index("**")
    above, below = "".join(f"{part}/" for part in parts[:at]), parts[at + 1 :] or ["*"]
    waiting = list(glob.iglob(above) if above else ["."])  # noqa: PTH207
    while waiting:
        folder = waiting.pop()
        try:
            inside = list_folder(Path(folder), lambda _: False)
        except OSError:
            unread.add(str(Path(folder)))
            continue
        waiting += [os.path.join(folder, name) for name, _ in inside]  # noqa: PTH118  # strings are small
        yield from _matches("/".join([glob.escape(folder), *below]), unread)


def in_folder(folder: Path) -> Iterator[Picture]:
    """The pictures in a folder and its subfolders, by name; in memory are the names of one folder a level."""
    for path, fault in walk(folder, is_picture_name):
        if fault is None:
            yield _file(path, source=str(path.parent))
        else:
            yield unreadable(str(path), fault.strerror or str(fault))


def walk(
    top: Path, is_wanted: Callable[[str], bool], enters: Callable[[Path], bool] = lambda _: True
) -> Iterator[tuple[Path, OSError | None]]:
    """The files of wanted names in a folder and its subfolders, by name.

    Among them are the folders that cannot be read, each with the reason.
    """
    levels = [iter([(top, True)])]  # no recursion, which Python ends at about 1,000 folders
    while levels:
        path, is_folder = next(levels[-1], (None, False))
        if path is None:
            levels.pop()
        elif not is_folder:
            yield path, None
        elif enters(path):
            try:
                levels.append(_inside(path, is_wanted))
            except OSError as fault:
                yield path, fault


def _inside(folder: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[Path, bool]]:
    return ((folder / name, is_folder) for name, is_folder in list_folder(folder, is_wanted))


def list_folder(folder: Path, is_wanted: Callable[[str], bool]) -> list[tuple[str, bool]]:
    """The subfolders of a folder and its files of wanted names: name, and whether it is a folder; sorted.

    Links to files are followed; links to folders are not, as they may form loops.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        return sorted(
            (entry.name, entry.is_dir(follow_symlinks=False))
            for entry in entries
            if _is_subfolder(entry)
            or (is_wanted(entry.name) and (entry.is_file(follow_symlinks=False) or _leads_to_file(entry)))
        )


def _is_subfolder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")


def _leads_to_file(found: os.DirEntry[str] | Path) -> bool:
    """Whether this is a file, or a link to one: reading from a pipe or a device might never end."""
    try:
        return stat.S_ISREG(found.stat().st_mode)
    except OSError:
        return True  # a link that leads nowhere, for example: reading it says so


def _file(path: Path, source: str) -> Picture:
    return Picture(str(path), partial(read_file, path), source)


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of a file.

    Raises:
        PictureReadError: there are more than the limit.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if size := os.fstat(file.fileno()).st_size:
            check_bytes(size, limit)
            return file.read()
        content = file.read(limit + 1)  # a pipe or a device has no size, and may have no end
    if len(content) > limit:
        raise PictureReadError(f"has no size and more than {limit} bytes (CAPSNET_MAX_BODY_BYTES)")
    return content


def _may_match(path: Path) -> bool:
    """Whether the match of a pattern counts."""
    return (is_picture_name(path.name) or _is_container(path.name)) and _leads_to_file(path)


def _is_file(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes) and not _is_folder(path)


def _is_folder(path: Path) -> bool:
    """False, where `Path.is_dir` raises, of what may not be looked at: reading it says why."""
    return os.path.isdir(path)  # noqa: PTH112


def _is_container(name: str) -> bool:
    return name.lower().endswith(CONTAINER_SUFFIXES)
