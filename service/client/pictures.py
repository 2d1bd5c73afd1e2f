"""Pictures as a client gives them, and how many go into one request."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# N images, H rows, W columns, C channels

REQUEST_IMAGES = 64  # two batches of the service's default; it takes 256 unless told otherwise
REQUEST_BYTES = 24 * 2**20  # a service takes bodies of 32 MiB unless told otherwise
UNNAMED = "picture"  # a part without a file name is no file

Array = NDArray[Any]
Picture = str | os.PathLike[str] | bytes | BinaryIO | Array
"""A file's path, its bytes or the file opened in binary mode; or an array [H, W] or [H, W, C], uint8 0-255 or
float32 0-1, of the model's size."""
Pictures = Picture | Iterable[Picture]
"""One picture, several, or an array of them, [N, H, W] or [N, H, W, C]."""


@dataclass(frozen=True, eq=False)
class Upload:
    """A picture in memory: a file's bytes, or an array. The file's name is None where it has none."""

    picture: Picture
    filename: str | None
    content: bytes | Array

    @property
    def size_bytes(self) -> int:
        """What it adds to a request."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.nbytes

    @property
    def kind(self) -> object:
        """The same for pictures that may share a request: files, or arrays that can be stacked."""
        if isinstance(self.content, bytes):
            return "file"
        return self.content.shape, self.content.dtype


@dataclass(frozen=True, eq=False)
class Unread:
    """A picture that could not be read, and why."""

    picture: Picture
    error: OSError | ValueError
    size_bytes: int = 0
    kind: object = "unread"


Loaded = TypeVar("Loaded", Upload, Unread, Upload | Unread)


def each_picture(pictures: Pictures) -> Iterable[Picture]:
    """The pictures one by one."""
    if isinstance(pictures, np.ndarray):
        return [pictures] if pictures.ndim == 2 else iter(pictures)
    if isinstance(pictures, str | os.PathLike | bytes | bytearray | memoryview) or hasattr(pictures, "read"):
        return [cast(Picture, pictures)]
    return pictures  # a file can be iterated, too: by lines


def load(picture: Picture) -> Upload:
    """Read a picture into memory. Blocks.

    Raises:
        OSError: the file cannot be read.
        ValueError: an array of another type or shape, or a file opened as text.
        TypeError: it is none of what a picture may be.
    """
    if isinstance(picture, np.ndarray):
        return Upload(picture, None, _checked_array(picture))
    if isinstance(picture, bytes | bytearray | memoryview):
        return Upload(picture, None, bytes(picture))
    if isinstance(picture, str | os.PathLike):
        path = Path(picture)
        return Upload(picture, _sendable(path.name), path.read_bytes())
    if not hasattr(picture, "read"):
        kinds = "a path, bytes, a file opened in binary mode or a numpy array"
        raise TypeError(f"a picture must be {kinds}, got {type(picture).__name__}")
    content = picture.read()
    if isinstance(content, str):
        raise ValueError("the file is opened as text; open it in binary mode: open(path, 'rb')")  # noqa: TRY004  # its type is right
    name = getattr(picture, "name", None)  # a number for files opened by their descriptor
    return Upload(picture, _sendable(Path(name).name) if isinstance(name, str) else None, content)


def load_or_say(picture: Picture) -> Upload | Unread:
    """The picture in memory, or why it cannot be read. Blocks."""
    try:
        return load(picture)
    except (OSError, ValueError) as error:
        return Unread(picture, error)


def in_requests(pictures: Iterable[Loaded], most_images: int, most_bytes: int) -> Iterator[list[Loaded]]:
    """Neighbours that go into one request; a picture above `most_bytes` goes alone.

    No more pictures than that are in memory at a time, if `pictures` loads them as they are asked for.
    """
    group: list[Loaded] = []
    size_bytes = 0
    for picture in pictures:
        is_full = len(group) == most_images or size_bytes + picture.size_bytes > most_bytes
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
        if isinstance(upload.content, bytes):
            files.append(("images", (upload.filename or UNNAMED, upload.content)))
        else:
            arrays.append(upload.content)
    if files:
        return {"files": files}
    file = BytesIO()
    np.save(file, np.stack(arrays), allow_pickle=False)
    return {"content": file.getvalue(), "headers": {"Content-Type": "application/x-npy"}}


def picture_file(upload: Upload) -> tuple[str, bytes]:
    """The name and bytes of one file, where a route takes no arrays: uint8 is written as PNG.

    Raises:
        ValueError: the array is float32, which no PNG holds as it is.
    """
    content = upload.content
    if isinstance(content, bytes):
        return upload.filename or UNNAMED, content
    if content.dtype != np.uint8:
        raise ValueError(
            f"the array is {content.dtype}; expected uint8 (0-255), or take infer and decode for float32"
        )
    file = BytesIO()
    Image.fromarray(content[:, :, 0] if content.shape[2:] == (1,) else content).save(file, "PNG")
    return UNNAMED, file.getvalue()


def _checked_array(array: Array) -> Array:
    if array.dtype not in (np.uint8, np.float32):
        raise ValueError(f"the array is {array.dtype}; expected uint8 (0-255) or float32 (0-1)")
    if array.ndim not in (2, 3):
        raise ValueError(f"one picture is an array [H, W] or [H, W, C]; got shape {list(array.shape)}")
    return array


def _sendable(name: str) -> str:
    """Linux takes bytes for names that are no text; those cannot be sent."""
    return os.fsencode(name).decode("utf-8", "replace")
