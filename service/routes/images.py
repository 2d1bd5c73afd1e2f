"""The images that /classify, /segment and /explain take: a form with files, one raw file, or one array."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from fastapi import Request
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from export.contract.preprocess import Rule
from service.errors import InvalidFieldError, UnsupportedBodyError, shown
from service.http.bodies import Body, parse_parts, read_body, require_content
from service.http.decoding import decode_array, decode_files
from service.http.multipart import MULTIPART, Part, Upload
from service.http.openapi import FILE
from service.observability.timings import end_part
from service.state import Service

# N images, H rows, W columns, C channels. A pair of views is one image of two channels, and two files.

Floats = NDArray[np.float32]

NPY = "application/x-npy"
NPY_SIGNATURE = b"\x93NUMPY"

IMAGES_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "A model of two views takes consecutive files as pairs, the left view first, or an "
        "array [N, H, W, 2].",
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {"images": {"type": "array", "items": FILE, "minItems": 1}},
                    "additionalProperties": False,
                }
            },
            "image/*": {"schema": FILE},
            "application/octet-stream": {"schema": FILE},
            "application/x-npy": {"schema": FILE},
        },
    }
}


class ImageFiles(NamedTuple):
    """The files of a request: pictures, or one .npy file."""

    files: list[Upload]
    is_array: bool


class Images(NamedTuple):
    """Model input: pixels [N, H, W, C] in 0-1, and where each image came from.

    Attributes:
        filenames: of each image; of a pair both in one, as in "left.png, right.png".
    """

    filenames: list[str | None]
    pixels: Floats


async def read_images_body(request: Request) -> Body:
    """The whole body of a request with images.

    Raises:
        ServiceError: the body is invalid; the message says what was expected and what came.
    """
    return await read_body(request, _check_kind)


async def parse_images(body: Body, service: Service) -> ImageFiles:
    """The files of a body: of a form, or one raw file or array.

    Raises:
        ServiceError: the body is invalid; the message says what was expected and what came.
    """
    if body.kind == MULTIPART:
        parts = await parse_parts(body, service.settings.max_images_per_request, service.pool)
        end_part("parse")
        return ImageFiles(_image_files(parts, body.path), is_array=False)
    require_content(body)  # of any type: `curl --data-binary` calls a picture a form
    if body.kind != NPY and body.content.startswith(NPY_SIGNATURE):
        raise UnsupportedBodyError(
            f"the body is a .npy array: send it with the header Content-Type: {NPY}; got {shown(body.kind)}"
        )
    return ImageFiles([Upload(None, body.content)], is_array=body.kind == NPY)


async def decode_images(given: ImageFiles, manifest: Manifest, rule: Rule, service: Service) -> Images:
    """The images of a body; for a model of two views consecutive files are a pair.

    Raises:
        ServiceError: a file or the array is invalid, or the service is overloaded.
    """
    facts = manifest.preprocessing
    if given.is_array:
        max_images = service.settings.max_images_per_request
        try:
            with service.pool.room_for(1):
                pixels = await service.pool.run(decode_array, given.files[0].content, facts, max_images)
        finally:
            end_part("decode")
        return Images([None] * len(pixels), pixels)
    if len(given.files) % manifest.views:
        raise InvalidFieldError(
            f"{manifest.model} takes two views of each image: files in pairs, the left view first (with "
            f"curl: -F images=@left.png -F images=@right.png); got {len(given.files)}"
        )
    names = [file.filename for file in given.files]
    pixels = await decode_files(given.files, facts, rule, service.settings, service.pool)
    return Images(names if manifest.views == 1 else pair_names(names), pixels)


def pair_names(names: Sequence[str | None]) -> list[str | None]:
    """The names of pairs of files: the left name and the right one, if they have names."""
    pairs = zip(names[::2], names[1::2], strict=True)
    return [", ".join(name for name in pair if name) or None for pair in pairs]


def _check_kind(kind: str, path: str) -> None:
    if kind == "application/json":
        raise UnsupportedBodyError(
            f"{path} takes {MULTIPART} with the field images, one raw image, or {NPY}; got application/json"
        )


def _image_files(parts: list[Part], path: str) -> list[Upload]:
    uploads = []
    for name, value in parts:
        if name != "images":
            raise InvalidFieldError(f"unknown field {shown(name)}; {path} takes files in the field 'images'")
        if isinstance(value, str):
            raise InvalidFieldError(
                "the field images must hold files; got text (with curl: -F images=@7.png)"
            )
        uploads.append(value)
    if not uploads:
        raise InvalidFieldError(f"the multipart body has no part; {path} takes files in the field 'images'")
    return uploads
