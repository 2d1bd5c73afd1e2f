"""The pictures of a run on many machines, cut into shards that any process can read.

Folders and files are found through pyarrow's file systems, so they may be on a disk or in an object store.
Which picture is in which shard depends only on the arguments and on what is there: a resumed run cuts in the
same way.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from export.contract.one_line import one_line
from service.score.parquet import FAULTS, RowGroups, find_image_column, in_parquet
from service.score.picture_stream import (
    SUFFIXES,
    Picture,
    PictureReadError,
    check_bytes,
    is_picture_name,
    unreadable,
)
from service.score.query import ScoreError
from service.score.sources import (
    CONTAINER_SUFFIXES,
    PARQUET_SUFFIXES,
    expand,
    read_file,
    refuse_columns_of_nothing,
    walk,
)

RECORD = "_run.json"  # in the folder that a run writes
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class FileShard:
    """Pictures that are files.

    Attributes:
        place: of the folder: an absolute path, or an address of another file system.
        shown: the folder as rows name it.
        names: of the files, relative to the folder, separated by /.
    """

    place: str
    shown: str
    names: Sequence[str]

    @property
    def rows(self) -> int:
        """Number of pictures."""
        return len(self.names)

    @property
    def row_names(self) -> Iterable[str]:
        """What the shard holds, to tell whether it is the same as before."""
        return (_join(self.shown, name) for name in self.names)

    def pictures(self, image_column: str | None, id_column: str | None) -> Iterator[Picture]:
        """The pictures; the columns are those of Parquet files."""
        files, root = open_place(self.place)
        for name in self.names:
            shown = _join(self.shown, name)
            if isinstance(files, LocalFileSystem):  # pyarrow takes no names that are not UTF-8
                read = partial(read_file, Path(root, name))
            else:
                read = partial(_read_object, files, f"{root}/{name}")
            yield Picture(shown, read, _folder(shown))


@dataclass(frozen=True)
class RowShard:
    """Some row groups of a Parquet file.

    Attributes:
        place: an absolute path, or an address of another file system.
        shown: the file as rows name it.
        first: the first row group.
        end: the row group after the last one.
        first_row: number of the first row in the file.
        rows: number of rows.
        fault: why the file could not be cut; then it has no row groups, and counts as one row.
    """

    place: str
    shown: str
    first: int
    end: int
    first_row: int
    rows: int
    fault: str = ""

    @property
    def row_names(self) -> Iterable[str]:
        """What the shard holds, to tell whether it is the same as before."""
        return [f"{self.shown}#{self.first_row}+{self.rows}"]

    def pictures(self, image_column: str | None, id_column: str | None) -> Iterator[Picture]:
        """The pictures in these columns."""
        if self.fault:
            yield unreadable(self.shown, self.fault)
            return
        files, path = open_place(self.place)
        try:
            with files.open_input_file(path) as file:
                groups = RowGroups(file, self.first, self.end, self.first_row)
                yield from in_parquet(self.shown, image_column, id_column, groups)
        except FAULTS as error:
            yield unreadable(self.shown, _fault(error))


Shard = FileShard | RowShard


def find_shards(
    arguments: Sequence[str], size: int, image_column: str | None, id_column: str | None
) -> list[Shard]:
    """The shards of files, folders, patterns and addresses, in this order.

    Args:
        arguments: patterns match on the disk only; folders count with their pictures and Parquet files.
        size: pictures of a shard; more if a row group has more, or a pair of views would be cut.
        image_column: of Parquet files.
        id_column: of Parquet files.

    Raises:
        ScoreError: a place does not exist, is an archive, or cannot be read; a Parquet file lacks a column;
            or there is no picture at all, or a column is named without a Parquet file.
    """
    shards: list[Shard] = []
    # Files that a pattern names one by one are neighbors in a shard, too.
    found = (file for argument in arguments for file in _files(argument))
    for (place, shown), files in groupby(found, lambda file: file[:2]):
        for is_parquet, some in groupby((name for _, _, name in files), _is_parquet):
            if not is_parquet:
                shards += [FileShard(place, shown, cut) for cut in _cut(some, size)]
                continue
            for name in some:
                in_place = _join(place, quote(name)) if ADDRESS.match(place) else _join(place, name)
                shards += _in_row_groups(in_place, _join(shown, name), size, image_column, id_column)
    if not any(shard.rows for shard in shards):
        raise ScoreError(f"no picture ({', '.join(sorted(SUFFIXES))}) in {', '.join(arguments)}")
    if not any(isinstance(shard, RowShard) for shard in shards):
        refuse_columns_of_nothing(image_column, id_column)
    return shards


def open_place(place: str) -> tuple[FileSystem, str]:
    """The file system of a path or an address, and the path in it.

    Raises:
        ScoreError: there is no such kind of address, or it cannot be opened.
    """
    if not ADDRESS.match(place):
        return LocalFileSystem(), place
    try:
        files, path = FileSystem.from_uri(place)
    except FAULTS as error:
        raise ScoreError(f"{shown_place(place)!r} cannot be opened: {error}") from None
    return files, path.rstrip("/")


def shown_place(place: str) -> str:
    """An address without its options, which may hold keys; a path as it is."""
    return place.partition("?")[0] if ADDRESS.match(place) else place


def _files(argument: str) -> Iterator[tuple[str, str, str]]:
    """The files of an argument: the folder that they are read from, as rows name it, and the name in it."""
    if ADDRESS.match(argument):
        yield from _at_address(argument, shown_place(argument))
        return
    for path in map(Path, expand(argument)):
        yield from _on_disk(path)


def _on_disk(path: Path) -> Iterator[tuple[str, str, str]]:
    if path.is_dir():
        try:
            yield from ((str(path.absolute()), str(path), name) for name in _in_folder(path))
        except OSError as error:
            raise ScoreError(one_line(error)) from None
        return
    _check_no_archive(path.name, str(path))
    yield str(path.absolute().parent), str(path.parent), path.name


def _in_folder(folder: Path) -> Iterator[str]:
    """The files of a folder and its subfolders, as `--local` finds them, and Parquet files."""

    def enters(path: Path) -> bool:
        return path == folder or not (path / RECORD).is_file()  # else it is the table of a run

    for path, fault in walk(folder, _is_wanted, enters):
        if fault is not None:
            raise fault
        yield str(path.relative_to(folder))


def _at_address(address: str, shown: str) -> Iterator[tuple[str, str, str]]:
    files, path = open_place(address)
    try:
        kind = files.get_file_info(path).type
        if kind == FileType.Directory:
            listed = files.get_file_info(FileSelector(path, recursive=True))
            names = sorted(_names(listed, path), key=lambda name: name.split("/"))
            yield from ((address, shown, name) for name in names)
            return
    except FAULTS as error:
        raise ScoreError(f"{shown!r} cannot be read: {error}") from None
    if kind == FileType.NotFound:
        raise ScoreError(f"{shown!r}: no such file or folder")
    name = path.rpartition("/")[2]  # in an address, blanks and others are written as %20
    _check_no_archive(name, shown)
    yield _parent(address), _folder(shown.rstrip("/")), name


def _check_no_archive(name: str, shown: str) -> None:
    if name.lower().endswith(CONTAINER_SUFFIXES) and not _is_parquet(name):
        raise ScoreError(
            f"{shown}: --ray reads pictures, folders and Parquet files; unpack the archive, or use --local"
        )


def _parent(address: str) -> str:
    """The folder of a file; the options of an address stay at its end."""
    address, mark, options = address.partition("?")
    return f"{address.rstrip('/').rpartition('/')[0]}{mark}{options}"


def _folder(name: str) -> str:
    """The folder of a file, as --local names it on a disk."""
    return name.rpartition("/")[0] if ADDRESS.match(name) else str(Path(name).parent)


def _join(folder: str, name: str) -> str:
    """The path or address of a file in a folder; the options of an address stay at its end."""
    if not ADDRESS.match(folder):
        return str(Path(folder, name))
    address, mark, options = folder.partition("?")
    return f"{address.rstrip('/')}/{name}{mark}{options}"


def _names(listed: Iterable[FileInfo], folder: str) -> Iterator[str]:
    """The pictures and Parquet files of a folder and its subfolders, but for hidden ones and runs' tables."""
    names = [info.path[len(folder) :].lstrip("/") for info in listed if info.type == FileType.File]
    tables = {name.removesuffix(RECORD) for name in names if name.endswith(f"/{RECORD}")}
    for name in names:
        *above, last = name.split("/")
        folders = accumulate(f"{part}/" for part in above)
        hidden = any(part.startswith(".") for part in above) or not tables.isdisjoint(folders)
        if _is_wanted(last) and not hidden:
            yield name


def _is_wanted(name: str) -> bool:
    return is_picture_name(name) or (_is_parquet(name) and not name.startswith("."))


def _cut(names: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` names, or of one more: two views of a pair are neighbors in a folder."""
    names_now: list[str] = []
    folder, in_folder = None, 0
    for name in names:
        above = name.rpartition("/")[0]
        in_folder = in_folder + 1 if above == folder else 1
        folder = above
        if len(names_now) >= size and in_folder % 2 == 1:
            yield names_now
            names_now = []
        names_now.append(name)
    if names_now:
        yield names_now


def _in_row_groups(
    place: str, shown: str, size: int, image_column: str | None, id_column: str | None
) -> Iterator[RowShard]:
    """The shards of a Parquet file; one that cannot be read is one shard, which will say so."""
    files, path = open_place(place)
    try:
        with files.open_input_file(path) as opened, pq.ParquetFile(opened) as parquet:
            find_image_column(shown, parquet.schema_arrow, image_column, id_column)
            groups = parquet.metadata
            counts = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    except FAULTS as error:
        yield RowShard(place, shown, 0, 0, 0, rows=1, fault=_fault(error))
        return
    first, first_row, row = 0, 0, 0
    for number, count in enumerate(counts):
        row += count
        is_last = number + 1 == len(counts)
        if row > first_row and ((row - first_row >= size and row % 2 == 0) or is_last):
            yield RowShard(place, shown, first, number + 1, first_row, row - first_row)
            first, first_row = number + 1, row


def _fault(error: Exception) -> str:
    return f"the Parquet file cannot be read: {error}"


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(PARQUET_SUFFIXES)


def _read_object(files: FileSystem, path: str, limit: int) -> bytes:
    try:
        with files.open_input_file(path) as file:
            check_bytes(file.size(), limit)
            return bytes(file.read())
    except pa.ArrowException as error:
        raise PictureReadError(str(error)) from None
