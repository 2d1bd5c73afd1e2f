"""Pictures as users pass them, read into memory and grouped into requests."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO, TextIOBase
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile
from PIL.TiffImagePlugin import PHOTOMETRIC_INTERPRETATION, TiffImageFile

from capsnet.short_repr import ShortRepr

# N images, H rows, W columns, C channels

REQUEST_IMAGES = 64  # a service takes 256 by default
REQUEST_BYTES = 24 * 2**20  # a service takes bodies of 32 MiB by default
UNNAMED = "picture"  # a part of a form is a file only if it has a file name
PICTURE_AXES = (2, 3, 4)  # of an array with one picture or several
MAX_CHANNELS = 4  # size of the last axis of a single color picture; no picture is that few pixels wide
LEVELS = {(), (1,), (2,), (3,), (4,)}  # channels of arrays that can be converted to files
PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B"}
TIFF_MODES = {"I", "F"}  # more bits than a PNG can hold
UPRIGHT = {  # by EXIF's orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
CONVERTED = {"La": "LA", "PA": "RGBA", "RGBa": "RGBA", "I;16L": "I", "I;16N": "I"}  # any other mode: RGB

Array = NDArray[Any]
File = str | os.PathLike[str] | bytes | BinaryIO | Image.Image
"""A file's path, its bytes, the file opened in binary mode, or a PIL image."""


@dataclass(frozen=True, eq=False, repr=False)
class Pair(ShortRepr):
    """The two views of one object, for a model of stereo pairs."""

    left: File
    right: File


Picture = File | Array | Pair
"""A file or a pair of files; or an array [H, W] or [H, W, C], uint8 0-255 or floats 0-1, in which the two
views of a pair are C. Arrays of floats must have the model's size."""
Pictures = Picture | Iterable[Picture]
"""One picture, several, or an array of them, [N, H, W] or [N, H, W, C]."""

NamedFile = tuple[str | None, bytes]  # the name is None if the file has none


@dataclass(frozen=True, eq=False)
class Upload:
    """A picture in memory: one file, the two of a pair, or an array."""

    picture: Picture
    content: tuple[NamedFile, ...] | Array

    @property
    def filename(self) -> str | None:
        """The file's name, or both names of a pair, as in "left.png, right.png"; None if there is none."""
        if isinstance(self.content, tuple):
            return ", ".join(name for name, _ in self.content if name) or None
        return None

    @property
    def size_bytes(self) -> int:
        """Its size in a request."""
        if isinstance(self.content, tuple):
            return sum(len(content) for _, content in self.content)
        return self.content.nbytes

    @property
    def kind(self) -> object:
        """Equal for pictures that may share a request: files, pairs, or arrays that can be stacked."""
        if isinstance(self.content, tuple):
            return len(self.content)
        return self.content.shape, self.content.dtype


@dataclass(frozen=True, eq=False)
class UnreadPicture:
    """A picture that could not be read, and the error."""

    picture: Picture
    error: OSError | ValueError
    size_bytes: int = 0
    kind: object = "unread"


Loaded = TypeVar("Loaded", Upload, UnreadPicture, Upload | UnreadPicture)


def each_picture(pictures: Pictures) -> Iterable[Picture]:
    """The pictures one by one; `load` refuses what is no picture.

    Raises:
        ValueError: an array with too few or too many axes.
    """
    if isinstance(pictures, np.ndarray) and pictures.ndim not in PICTURE_AXES:
        raise ValueError(
            "an array is one picture, [H, W] or [H, W, C], or several, [N, H, W] or [N, H, W, C]; "
            f"got shape {list(pictures.shape)}"
        )
    return [cast(Picture, pictures)] if is_single(pictures) else cast(Iterable[Picture], pictures)


def is_single(pictures: object) -> bool:
    """Whether this is one picture, or nothing that can be iterated."""
    if isinstance(pictures, np.ndarray):
        return pictures.ndim == 2 or (pictures.ndim == 3 and pictures.shape[2] <= MAX_CHANNELS)
    is_file = isinstance(pictures, str | os.PathLike | bytes | bytearray | memoryview)
    is_several = hasattr(pictures, "__iter__") or hasattr(pictures, "__getitem__")
    return is_file or hasattr(pictures, "read") or not is_several  # files, too, can be iterated: by lines


def load(picture: Picture) -> Upload:
    """Read a picture into memory. Blocks.

    Raises:
        OSError: the file cannot be read.
        ValueError: an array of another type or shape, or a file opened as text.
        TypeError: it is no picture.
    """
    if isinstance(picture, np.ndarray):
        return Upload(picture, _sendable_array(picture))
    files = (picture.left, picture.right) if isinstance(picture, Pair) else (picture,)
    return Upload(picture, tuple(_read_file(file) for file in files))


def try_load(picture: Picture) -> Upload | UnreadPicture:
    """The picture in memory, or the error if it cannot be read. Blocks."""
    try:
        return load(picture)
    except (OSError, ValueError) as error:
        return UnreadPicture(picture, error)


def in_requests(pictures: Iterable[Loaded], max_images: int, max_bytes: int) -> Iterator[list[Loaded]]:
    """Group neighbors into requests; a picture larger than `max_bytes` goes alone.

    If `pictures` loads lazily, only the pictures of one request are in memory.
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
    """The body for pictures of one kind: a multipart form of files, or an .npy file of arrays."""
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
    """Whether it is an array that `picture_files` can convert: gray, color, or a pair of gray views."""
    content = upload.content
    return isinstance(content, np.ndarray) and content.dtype == np.uint8 and content.shape[2:] in LEVELS


def picture_files(upload: Upload) -> list[tuple[str, bytes]]:
    """Names and contents of the files, one per view, for a route that takes no arrays: uint8 becomes PNG.

    Raises:
        ValueError: the array is float32 or has more than four channels, which PNG cannot hold.
    """
    content = upload.content
    if isinstance(content, tuple):
        return [(name or UNNAMED, file) for name, file in content]
    if content.dtype != np.uint8:
        raise ValueError(
            f"the array is {content.dtype}; expected uint8 (0-255); for float32 use infer and decode"
        )
    if content.shape[2:] not in LEVELS:
        shapes = f"[H, W] or [H, W, C], C at most {MAX_CHANNELS}"
        raise ValueError(f"the array has shape {list(content.shape)}; expected {shapes}")
    views = np.moveaxis(content, 2, 0) if content.shape[2:] in {(1,), (2,)} else [content]
    return [(UNNAMED, _as_png(view)) for view in views]


def _as_png(levels: Array) -> bytes:
    file = BytesIO()
    Image.fromarray(levels).save(file, "PNG")
    return file.getvalue()


def _as_file(picture: Image.Image) -> bytes:
    """A file with the pixels of a PIL image; an image opened from a file is turned upright."""
    is_deep = picture.mode in TIFF_MODES or picture.mode.startswith("I;16")
    if is_deep and isinstance(picture, TiffImageFile) and picture.tag_v2.get(PHOTOMETRIC_INTERPRETATION) == 0:
        raise ValueError("the TIFF's 0 is white, which a PIL image of it does not tell; send the file")
    if isinstance(picture, ImageFile.ImageFile):
        try:
            picture.load()
        except SyntaxError as error:  # Pillow's, of a broken PNG
            raise ValueError(str(error)) from None
        turn = UPRIGHT.get(_orientation(picture))
        picture = picture.copy() if turn is None else picture.transpose(turn)  # neither copies TIFF tags
    if picture.mode not in PNG_MODES | TIFF_MODES:
        picture = picture.convert(CONVERTED.get(picture.mode, "RGB"))
    file = BytesIO()
    picture.save(file, "TIFF" if picture.mode in TIFF_MODES else "PNG")
    return file.getvalue()


def _orientation(picture: Image.Image) -> int:
    """EXIF's; 1, upright, where there is none or it cannot be read: the picture beside it is sound."""
    try:
        found = picture.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # on damaged EXIF Pillow raises nearly everything there is
        return 1
    return found if isinstance(found, int) else 1


def _read_file(file: File) -> NamedFile:
    if isinstance(file, Image.Image):
        if 0 in file.size:
            raise ValueError(f"the PIL image is {file.width}x{file.height}; a picture has pixels")
        return None, _as_file(file)
    if isinstance(file, np.ndarray):
        raise TypeError(
            "the views of a Pair are files or PIL images; stack two arrays into one picture: "
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
    # A picture that is opened as text cannot even be read.
    content = "" if isinstance(file, TextIOBase) else file.read()
    if isinstance(content, str):
        raise ValueError("the file is opened as text; open it in binary mode: open(path, 'rb')")  # noqa: TRY004  # the type is right
    name = getattr(file, "name", None)  # an int for files opened by descriptor
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
    """File names on Linux may be invalid text, which cannot be sent."""
    return os.fsencode(name).decode("utf-8", "replace")
