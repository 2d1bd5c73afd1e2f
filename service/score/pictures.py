"""A picture that waits to be scored, wherever it lies, and how pictures become batches in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath
from typing import Self

from service.score.query import Loaded, ScoreError, Skipped

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
BATCH_BYTES = 24 * 2**20  # of files in one batch; a service takes bodies of 32 MiB unless told otherwise


class UnreadablePictureError(Exception):
    """A picture whose bytes cannot be had; the message says why."""


@dataclass(frozen=True)
class Picture:
    """A picture and where its bytes come from.

    Attributes:
        name: what its row is called.
        read: its file's bytes, of which there may be as many as the argument says. To be called before the
            next picture is taken or looked at, because archives are read once, from their beginning to their
            end. Raises UnreadablePictureError or OSError.
        source: its folder, on disk or in an archive, its Parquet file, or the list that names it; the two
            views of a pair have the same. None where it is no view at all, but an archive's or a folder's
            damage, which is reported in the place of pictures that nobody knows.
    """

    name: str
    read: Callable[[int], bytes]
    source: str | None


class Upcoming:
    """Pictures one after the other, of which the next may be looked at before it is taken."""

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
        """The next picture, which stays the next; None at the end."""
        if self._next is None:
            self._next = next(self._pictures, None)
        return self._next

    def take_right(self, left: Picture) -> Picture | None:
        """Take the other view of a pair, just behind the left one; None, and none taken, if there is none."""
        right = self.peek()
        if left.source is None or right is None or right.source != left.source:
            return None
        return next(self)


def is_picture_name(name: str) -> bool:
    """Whether it looks like a picture; `._7.png` is what macOS leaves beside 7.png and is none."""
    return not name.startswith(".") and PurePath(name).suffix.lower() in SUFFIXES


def check_bytes(size: int, limit: int) -> None:
    """A file of `size` bytes may be read.

    Raises:
        UnreadablePictureError: it is too large.
    """
    if size > limit:
        raise UnreadablePictureError(
            f"has {size} bytes; files of up to {limit} are read (CAPSNET_MAX_BODY_BYTES)"
        )


def unreadable(name: str, reason: str) -> Picture:
    """A place where pictures should be and cannot be read; it is reported in its turn like a picture."""

    def read(_: int) -> bytes:
        raise UnreadablePictureError(reason)

    return Picture(name, read, source=None)


def in_batches(
    pictures: Upcoming, size: int, file_bytes: int, views: int = 1
) -> Iterator[list[Loaded | Skipped]]:
    """The pictures, read, in lists of `size`, or of fewer where their files are large.

    Args:
        pictures: taken and read one after the other.
        size: pictures in a batch, at most, or pairs of them.
        file_bytes: the largest file that is read, in bytes.
        views: 2 makes one of two neighbours, the left view first.
    """
    batch: list[Loaded | Skipped] = []
    held_bytes = 0
    load = _load_each if views == 1 else _load_pairs
    for loaded in load(pictures, file_bytes):
        size_bytes = loaded.size_bytes if isinstance(loaded, Loaded) else 0
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


def row_names(pictures: Upcoming, views: int) -> Iterator[str]:
    """What the pictures' rows are called, of a pair by both its names: those that `in_batches` gives."""
    for picture in pictures:
        right = pictures.take_right(picture) if views == 2 else None
        yield picture.name if right is None else _pair_name(picture.name, right.name)


def check_pairs(pictures: Iterator[Picture]) -> None:
    """Every picture has its other view; none of them is read.

    Raises:
        ScoreError: one would be left over, and nobody knows which.
    """
    for source, together in groupby(pictures, lambda picture: picture.source):
        count, last = 0, ""
        for picture in together:
            count, last = count + 1, picture.name
        if source is not None and count % 2:
            raise ScoreError(
                "the model takes two views of each image: pictures in pairs, each left view just before its "
                f"right one, in the same folder, archive or Parquet file; {source} gives {count}, an odd "
                f"number, up to {last}; find the one too few or too many, or name the pairs in a list for "
                "--files-from"
            )


def _load_each(pictures: Upcoming, file_bytes: int) -> Iterator[Loaded | Skipped]:
    return (_load(picture, file_bytes) for picture in pictures)


def _load_pairs(pictures: Upcoming, file_bytes: int) -> Iterator[Loaded | Skipped]:
    for picture in pictures:
        left = _load(picture, file_bytes)  # before the right one is looked for
        right = pictures.take_right(picture)
        if right is not None:
            yield _paired(left, _load(right, file_bytes))
        elif picture.source is None:
            yield left
        else:
            yield Skipped(
                picture.name,
                f"has no other view: {picture.source} gives an odd number of pictures up to here; if one is "
                "missing or too many before it, the pairs from there on are wrong",
            )


def _paired(left: Loaded | Skipped, right: Loaded | Skipped) -> Loaded | Skipped:
    name = _pair_name(left.name, right.name)
    if isinstance(left, Skipped):
        return Skipped(name, f"{left.name}: {left.reason}")
    if isinstance(right, Skipped):
        return Skipped(name, f"{right.name}: {right.reason}")
    return Loaded(name, left.content, right.content)


def _pair_name(left: str, right: str) -> str:
    return f"{left}, {right}"


def _load(picture: Picture, file_bytes: int) -> Loaded | Skipped:
    try:
        return Loaded(picture.name, picture.read(file_bytes))
    except UnreadablePictureError as error:
        return Skipped(picture.name, str(error))
    except OSError as error:
        return Skipped(picture.name, error.strerror or str(error))
