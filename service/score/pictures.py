"""A picture that waits to be scored, wherever it lies, and how pictures become batches in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import PurePath
from typing import TypeVar

from service.score.query import Loaded, ScoreError, Skipped

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
BATCH_BYTES = 24 * 2**20  # of files in one batch; a service takes bodies of 32 MiB unless told otherwise


T = TypeVar("T")


class UnreadablePictureError(Exception):
    """A picture whose bytes cannot be had; the message says why."""


@dataclass(frozen=True)
class Picture:
    """A picture and where its bytes come from.

    Attributes:
        name: what its row is called.
        read: its file's bytes, of which there may be as many as the argument says. To be called before the
            next picture is taken, because archives are read once, from their beginning to their end. Raises
            UnreadablePictureError or OSError.
    """

    name: str
    read: Callable[[int], bytes]


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
    """A picture known to be there of which nothing can be read; it is reported in its turn like any other."""

    def read(_: int) -> bytes:
        raise UnreadablePictureError(reason)

    return Picture(name, read)


def in_batches(
    pictures: Iterator[Picture], size: int, file_bytes: int, views: int = 1
) -> Iterator[list[Loaded | Skipped]]:
    """The pictures, read, in lists of `size`, or of fewer where their files are large.

    Args:
        pictures: taken and read one after the other.
        size: pictures in a batch, at most, or pairs of them.
        file_bytes: the largest file that is read, in bytes.
        views: 2 makes one of two neighbours, the left view first.

    Raises:
        ScoreError: the last one is left without a neighbour.
    """
    batch: list[Loaded | Skipped] = []
    held_bytes = 0
    each = (_load(picture, file_bytes) for picture in pictures)
    for loaded in each if views == 1 else starmap(_paired, in_pairs(each)):
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


def in_pairs(views: Iterator[T]) -> Iterator[tuple[T, T]]:
    """Neighbours as pairs; a pair's second is asked for only after its first.

    Raises:
        ScoreError: the last one is left without a neighbour.
    """
    for left in views:
        right = next(views, None)
        if right is None:
            raise unpaired("an odd number")
        yield left, right


def unpaired(came: str) -> ScoreError:
    """The error of pictures that are no pairs."""
    return ScoreError(
        "the model takes two views of each image: pictures in pairs, each left view just before its right "
        f"one; got {came} of pictures, and so one too few or too many somewhere among them"
    )


def row_names(pictures: Iterator[Picture], views: int) -> Iterator[str]:
    """What the pictures' rows are called, of a pair by both its names."""
    names = (picture.name for picture in pictures)
    return names if views == 1 else starmap(_pair_name, in_pairs(names))


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
