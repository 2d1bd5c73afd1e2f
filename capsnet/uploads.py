"""Pictures as a client gives them, and how many go into one request."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps

from capsnet.short_repr import ShortRepr

# N images, H rows, W columns, C channels

REQUEST_IMAGES = 64  # two batches of the service's default; it takes 256 unless told otherwise
REQUEST_BYTES = 24 * 2**20  # a service takes bodies of 32 MiB unless told otherwise
UNNAMED = "picture"  # a part without a file name is no file
PICTURE_AXES = (2, 3, 4)  # of an array of one picture or of several
MAX_CHANNELS = 4  # the last axis of a single picture in colour; no picture is so few pixels wide
LEVELS = {(), (1,), (2,), (3,), (4,)}  # channels of arrays that can become files
PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}
TIFF_MODES = {"I", "F"}  # deep ones, which a PNG would cut off

Array = NDArray[Any]
File = str | os.PathLike[str] | bytes | BinaryIO | Image.Image
"""A file's path, its bytes, the file opened in binary mode or as a PIL image."""


@dataclass(frozen=True, eq=False, repr=False)
class Pair(ShortRepr):
    """The two views of one object for a model that takes pairs, such as a stereo camera's pictures."""

    left: File
    right: File


Picture = File | Array | Pair
"""A file or a pair of them; or an array [H, W] or [H, W, C], uint8 0-255 or floats 0-1, where the two views
of a pair are C. Floats are of the model's size."""
Pictures = Picture | Iterable[Picture]
"""One picture, several, or an array of them, [N, H, W] or [N, H, W, C]."""

NamedFile = tuple[str | None, bytes]  # the name is None where it has none


@dataclass(frozen=True, eq=False)
class Upload:
    """A picture in memory: one file, the two of a pair, or an array."""

    picture: Picture
    content: tuple[NamedFile, ...] | Array

    @property
    def filename(self) -> str | None:
        """The file's name, of a pair both, as in "left.png, right.png"; None where there is none."""
        if isinstance(self.content, tuple):
            return ", ".join(name for name, _ in self.content if name) or None
        return None

    @property
    def size_bytes(self) -> int:
        """What it adds to a request."""
        if isinstance(self.content, tuple):
            return sum(len(content) for _, content in self.content)
        return self.content.nbytes

    @property
    def kind(self) -> object:
        """The same for pictures that may share a request: files, pairs, or arrays that can be stacked."""
        if isinstance(self.content, tuple):
            return len(self.content)
        return self.content.shape, self.content.dtype


@dataclass(frozen=True, eq=False)
class UnreadPicture:
    """A picture that could not be read, and why."""

    picture: Picture
    error: OSError | ValueError
    size_bytes: int = 0
    kind: object = "unread"


Loaded = TypeVar("Loaded", Upload, UnreadPicture, Upload | UnreadPicture)


def each_picture(pictures: Pictures) -> Iterable[Picture]:
    """The pictures one by one; what is none of what a picture may be is left to `load`.

    Raises:
        ValueError: an array with too few or too many axes.
    """
    if isinstance(pictures, np.ndarray):
        if pictures.ndim not in PICTURE_AXES:
            raise ValueError(
                "an array is one picture, [H, W] or [H, W, C], or several, [N, H, W] or [N, H, W, C]; "
                f"got shape {list(pictures.shape)}"
            )
        is_one = pictures.ndim == 2 or (pictures.ndim == 3 and pictures.shape[2] <= MAX_CHANNELS)
        return [pictures] if is_one else iter(pictures)
    is_file = isinstance(pictures, str | os.PathLike | bytes | bytearray | memoryview)
    is_several = hasattr(pictures, "__iter__") or hasattr(pictures, "__getitem__")
    if is_file or hasattr(pictures, "read") or not is_several:  # a file can be iterated, too: by lines
        return [cast(Picture, pictures)]
    return cast(Iterable[Picture], pictures)


def load(picture: Picture) -> Upload:
    """Read a picture into memory. Blocks.

    Raises:
        OSError: the file cannot be read.
        ValueError: an array of another type or shape, or a file opened as text.
        TypeError: it is none of what a picture may be.
    """
    if isinstance(picture, np.ndarray):
        return Upload(picture, _sendable_array(picture))
    files = (picture.left, picture.right) if isinstance(picture, Pair) else (picture,)
    return Upload(picture, tuple(_read_file(file) for file in files))


def try_load(picture: Picture) -> Upload | UnreadPicture:
    """The picture in memory, or why it cannot be read. Blocks."""
    try:
        return load(picture)
    except (OSError, ValueError) as error:
        return UnreadPicture(picture, error)


def in_requests(pictures: Iterable[Loaded], max_images: int, max_bytes: int) -> Iterator[list[Loaded]]:
    """Neighbours that go into one request; a picture above `max_bytes` goes alone.

    No more pictures than that are in memory at a time, if `pictures` loads them as they are asked for.
    """
    group: list[Loaded] = []
    size_bytes = 0
    for picture in pictures:
        is_full = len(group) == max_images or size_bytes + picture.size_bytes > max_bytes
        if group and (is_full or picture.kind != group[0].kind):
            yield group
            group, size_bytes = [], 0
        group.append(picture)
        size_bytes += picture.size_bytes
    if group:
        yield group


def body_of(uploads: Sequence[Upload]) -> dict[str, Any]:
    """The body of pictures of one kind: multipart of files, or the .npy file of arrays."""
    files: list[tuple[str, tuple[str, bytes]]] = []
    arrays: list[Array] = []
    for upload in uploads:
        if isinstance(upload.content, tuple):
            files += [("images", (name or UNNAMED, content)) for name, content in upload.content]
        else:
            arrays.append(upload.content)
    if files:
        return {"files": files}
    file = BytesIO()
    np.save(file, np.stack(arrays), allow_pickle=False)
    return {"content": file.getvalue(), "headers": {"Content-Type": "application/x-npy"}}


def is_picture(upload: Upload) -> bool:
    """Whether it is an array that `picture_files` makes files of, grey or colour or a pair of grey views."""
    content = upload.content
    return isinstance(content, np.ndarray) and content.dtype == np.uint8 and content.shape[2:] in LEVELS


def picture_files(upload: Upload) -> list[tuple[str, bytes]]:
    """Names and bytes of the files, one for each view, where a route takes no arrays: uint8 becomes PNG.

    Raises:
        ValueError: the array is float32, which no PNG holds as it is.
    """
    content = upload.content
    if isinstance(content, tuple):
        return [(name or UNNAMED, file) for name, file in content]
    if content.dtype != np.uint8:
        raise ValueError(
            f"the array is {content.dtype}; expected uint8 (0-255), or take infer and decode for float32"
        )
    views = np.moveaxis(content, 2, 0) if content.shape[2:] in {(1,), (2,)} else [content]
    return [(UNNAMED, _as_png(view)) for view in views]


def _as_png(levels: Array) -> bytes:
    file = BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


def _as_file(picture: Image.Image) -> bytes:
    """The file of a PIL image, with the same pixels; one that is fresh from a file is turned upright."""
    if isinstance(picture, ImageFile.ImageFile):
        picture = ImageOps.exif_transpose(picture)
    file = BytesIO()
    if picture.mode in TIFF_MODES:
        picture.save(file, "TIFF")
    else:
        (picture if picture.mode in PNG_MODES else picture.convert("RGB")).save(file, "PNG")
    return file.getvalue()


def _read_file(file: File) -> NamedFile:
    if isinstance(file, Image.Image):
        if 0 in file.size:
            raise ValueError(f"the PIL image is {file.width}x{file.height}; a picture has pixels")
        return None, _as_file(file)
    if isinstance(file, np.ndarray):
        raise TypeError(
            "the views of a Pair are files or PIL images; of arrays make one picture: "
            "np.stack([left, right], axis=-1)"
        )
    if isinstance(file, bytes | bytearray | memoryview):
        return None, bytes(file)
    if isinstance(file, str | os.PathLike):
        path = Path(file)
        return _sendable(path.name), path.read_bytes()
    if not hasattr(file, "read"):
        kinds = "a path, bytes, a file opened in binary mode, a PIL image, a Pair of those or a numpy array"
        raise TypeError(f"a picture must be {kinds}, got {type(file).__name__}")
    content = file.read()
    if isinstance(content, str):
        raise ValueError("the file is opened as text; open it in binary mode: open(path, 'rb')")  # noqa: TRY004  # its type is right
    name = getattr(file, "name", None)  # a number for files opened by their descriptor
    return _sendable(Path(name).name) if isinstance(name, str) else None, content


def _sendable_array(array: Array) -> Array:
    if array.dtype != np.uint8 and not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"the array is {array.dtype}; expected uint8 (0-255) or floats (0-1)")
    if array.ndim not in (2, 3):
        raise ValueError(f"one picture is an array [H, W] or [H, W, C]; got shape {list(array.shape)}")
    if not array.size:
        raise ValueError(f"the array has shape {list(array.shape)}; a picture has pixels")
    return array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)


def _sendable(name: str) -> str:
    """Linux takes bytes for names that are no text; those cannot be sent."""
    return os.fsencode(name).decode("utf-8", "replace")
