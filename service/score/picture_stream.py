"""Pictures to score, wherever they lie, and how they become batches in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath
from typing import Self

from service.score.query import LoadedPicture, ScoreError, Skipped

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".avif", ".heic", ".heif", ".hif"}
)
BATCH_BYTES = 24 * 2**20  # of files in one batch; a service takes bodies of 32 MiB by default


class PictureReadError(Exception):
    """A picture whose bytes cannot be read; the message says why."""


@dataclass(frozen=True)
class Picture:
    """A picture and how to read it.

    Attributes:
        name: of its row.
        read: reads the bytes of its file; the argument is their maximum number. Call it before taking or
            peeking at the next picture: archives are read once, from start to end. Raises
            PictureReadError or OSError.
        source: its folder, on disk or in an archive, its Parquet file, or the list that names it; both views
            of a pair have the same. None if this is no picture, but the damage of an archive or a folder,
            which is reported in place of pictures that cannot be known.
    """

    name: str
    read: Callable[[int], bytes]
    source: str | None


class PictureStream:
    """An iterator over pictures that can peek at the next one."""

    def __init__(self, pictures: Iterator[Picture]) -> None:
        self._pictures = pictures
        self._next: Picture | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Picture:
        picture = self.peek()
        if picture is None:
            raise StopIteration
        self._next = None
        return picture

    def peek(self) -> Picture | None:
        """The next picture, without taking it; None at the end."""
        if self._next is None:
            self._next = next(self._pictures, None)
        return self._next

    def take_right_view(self, left: Picture) -> Picture | None:
        """Take the right view that belongs to `left`; None, and nothing taken, if there is none."""
        right = self.peek()
        if left.source is None or right is None or right.source != left.source:
            return None
        return next(self)


def is_picture_name(name: str) -> bool:
    """Whether the file's name is that of a picture; `._7.png`, which macOS leaves beside 7.png, is none."""
    return not name.startswith(".") and PurePath(name).suffix.lower() in SUFFIXES


def check_bytes(size: int, limit: int) -> None:
    """Check that a file of `size` bytes may be read.

    Raises:
        PictureReadError: it is too large.
    """
    if size > limit:
        raise PictureReadError(f"has {size} bytes; files of up to {limit} are read (CAPSNET_MAX_BODY_BYTES)")


def unreadable(name: str, reason: str) -> Picture:
    """A place whose pictures cannot be read; it is reported in order, like a picture."""

    def read(_: int) -> bytes:
        raise PictureReadError(reason)

    return Picture(name, read, source=None)


def in_batches(
    pictures: PictureStream, size: int, file_bytes: int, views: int = 1
) -> Iterator[list[LoadedPicture | Skipped]]:
    """Read the pictures, in lists of `size`, or fewer if their files are large.

    Args:
        pictures: taken and read one after the other.
        size: maximum pictures, or pairs of them, in a batch.
        file_bytes: the largest file that is read, in bytes.
        views: 2 makes a pair of two neighbors, the left view first.
    """
    batch: list[LoadedPicture | Skipped] = []
    held_bytes = 0
    load = _load_each if views == 1 else _load_pairs
    for loaded in load(pictures, file_bytes):
        size_bytes = loaded.size_bytes if isinstance(loaded, LoadedPicture) else 0
        if batch and held_bytes + size_bytes > BATCH_BYTES:
            yield batch
            batch, held_bytes = [], 0
        batch.append(loaded)
        held_bytes += size_bytes
        if len(batch) == size:
            yield batch
            batch, held_bytes = [], 0
    if batch:
        yield batch


def row_names(pictures: PictureStream, views: int) -> Iterator[str]:
    """The names of the rows that `in_batches` leads to; a pair has both names."""
    for picture in pictures:
        right = pictures.take_right_view(picture) if views == 2 else None
        yield picture.name if right is None else _pair_name(picture.name, right.name)


def check_pairs(pictures: Iterator[Picture]) -> None:
    """Check that every picture has its other view, without reading any.

    Raises:
        ScoreError: the pictures of a source are odd in number; which one is missing cannot be known.
    """
    for source, together in groupby(pictures, lambda picture: picture.source):
        count, last = 0, ""
        for picture in together:
            count, last = count + 1, picture.name
        if source is not None and count % 2:
            raise ScoreError(
                "the model takes two views of each image: pictures in pairs, each left view just before its "
                f"right one, in the same folder, archive or Parquet file; {source} has {count}, an odd "
                f"number, up to {last}; find the missing or extra one (a folder in it may sort between the "
                "two views), or list the pairs in a file for --files-from"
            )


def _load_each(pictures: PictureStream, file_bytes: int) -> Iterator[LoadedPicture | Skipped]:
    return (_load(picture, file_bytes) for picture in pictures)


def _load_pairs(pictures: PictureStream, file_bytes: int) -> Iterator[LoadedPicture | Skipped]:
    for picture in pictures:
        left = _load(picture, file_bytes)  # before the right one is looked for
        right = pictures.take_right_view(picture)
        if right is not None:
            yield _paired(left, _load(right, file_bytes))
        elif picture.source is None:
            yield left
        else:
            yield Skipped(
                picture.name,
                f"has no other view: {picture.source} has an odd number of pictures up to here; if one "
                "before it is missing or extra, the pairs from there on are wrong",
            )


def _paired(left: LoadedPicture | Skipped, right: LoadedPicture | Skipped) -> LoadedPicture | Skipped:
    name = _pair_name(left.name, right.name)
    if isinstance(left, Skipped):
        return Skipped(name, f"{left.name}: {left.reason}")
    if isinstance(right, Skipped):
        return Skipped(name, f"{right.name}: {right.reason}")
    return LoadedPicture(name, left.content, right.content)


def _pair_name(left: str, right: str) -> str:
    return f"{left}, {right}"


def _load(picture: Picture, file_bytes: int) -> LoadedPicture | Skipped:
    try:
        return LoadedPicture(picture.name, picture.read(file_bytes))
    except PictureReadError as error:
        return Skipped(picture.name, str(error))
    except OSError as error:
        return Skipped(picture.name, error.strerror or str(error))
