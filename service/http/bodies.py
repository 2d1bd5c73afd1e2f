"""Request bodies: what came in, as files, arrays and fields that have been checked."""

import binascii
import json
import struct
import threading
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from pydantic import ValidationError

from export.contract.arrays import ArrayError, read_array
from export.contract.manifest import Manifest, Preprocessing
from export.contract.pictures import (
    MismatchedViews,
    PictureError,
    PictureTooLarge,
    UnsupportedPicture,
    declared_pixels,
)
from service import errors
from service.errors import (
    CompressedBodyError,
    InvalidFieldError,
    MalformedBodyError,
    UnsupportedBodyError,
    shown,
)
from service.http.multipart import MULTIPART, Part, Upload, parse_form, too_many_images
from service.inference.model_input import decode_image
from service.routes.schemas import Preprocess, ReconstructFields, ReconstructRequest
from service.settings import Settings
from service.state import Service

# N images, H rows, W columns, C channels. A pair of views is one image of two channels, and two files.

Floats = NDArray[np.float32]
Fields = TypeVar("Fields", bound=ReconstructFields)

NPY = "application/x-npy"
NPY_SIGNATURE = b"\x93NUMPY"
JSON_FIELDS = {"pose", "version", "perturbations", "sweep"}  # in a form, which has only text
# The most that a request needs is half of it: a pose of 4,096 values, as many perturbations of two each, and
# as many dimensions of a sweep. In memory a value takes dozens of times the bytes it has in a body.
JSON_VALUES = 32_768
SPACE = b" \t\r\n"
PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # width and height follow
QUICK_BYTES = 16_384
QUICK_FORM_BYTES = 16_384  # a hostile form of this size takes 3 ms to parse
QUICK_PIXELS = 64 * 64


@dataclass(frozen=True)
class Body:
    """A request's body as it came.

    Attributes:
        content_type: the header's value.
        kind: the same without its parameters, in lower case; "" where there is none.
        path: of the request, for messages.
    """

    content: bytes
    content_type: str
    kind: str
    path: str


@dataclass(frozen=True)
class ClassifyBody:
    """What /classify or /segment is asked about: picture files, or one .npy file."""

    files: list[Upload]
    is_array: bool


@dataclass(frozen=True)
class Images:
    """Model input: pixels [N, H, W, C] in 0-1, and where each image came from.

    Attributes:
        filenames: of each image; of a pair both in one, as in "left.png, right.png".
    """

    filenames: list[str | None]
    pixels: Floats


async def read_classify(request: Request) -> Body:
    """The whole body of /classify or /segment.

    Raises:
        ServiceError: what was expected and what came.
    """
    if _media_type(request) == "application/json":
        raise UnsupportedBodyError(
            f"{request.url.path} takes {MULTIPART} with the field images, one raw image, or {NPY}; "
            "got application/json"
        )
    return await _read(request)


async def check_classify(body: Body, service: Service) -> ClassifyBody:
    """The files of a body of /classify or /segment: of a form, or one raw file or array.

    Raises:
        ServiceError: what was expected and what came.
    """
    if body.kind == MULTIPART:
        return ClassifyBody(_image_files(await _parts(body, service), body.path), is_array=False)
    _require_content(body)  # whatever it is called: `curl --data-binary` calls it a form
    if body.kind != NPY and body.content.startswith(NPY_SIGNATURE):
        raise UnsupportedBodyError(
            f"the body is a .npy array: send it with the header Content-Type: {NPY}; got {shown(body.kind)}"
        )
    return ClassifyBody([Upload(None, body.content)], is_array=body.kind == NPY)


async def decode_images(body: ClassifyBody, manifest: Manifest, rule: Preprocess, service: Service) -> Images:
    """The images of a body of /classify or /segment; for a model of two views consecutive files are a pair.

    Raises:
        ServiceError: what was expected and what came, or that there is too much to do.
    """
    facts = manifest.preprocessing
    if body.is_array:
        with service.room_for(1):
            pixels = await service.in_pool(decode_array, body.files[0].content, facts, service.settings)
        return Images([None] * len(pixels), pixels)
    if len(body.files) % manifest.views:
        raise InvalidFieldError(
            f"{manifest.model} takes two views of each image: files in pairs, the left view first (with "
            f"curl: -F images=@left.png -F images=@right.png); got {len(body.files)}"
        )
    names = [file.filename for file in body.files]
    return Images(
        names if manifest.views == 1 else pair_names(names),
        await decode_files(body.files, facts, rule, service),
    )


async def read_reconstruct(request: Request) -> Body:
    """The whole /reconstruct body.

    Raises:
        ServiceError: what was expected and what came.
    """
    kind = _media_type(request)
    if kind not in {"application/json", "", MULTIPART}:
        raise UnsupportedBodyError(f"/reconstruct takes application/json or {MULTIPART}; got {shown(kind)}")
    return await _read(request)


async def check_reconstruct(body: Body, service: Service) -> tuple[ReconstructFields, list[Upload]]:
    """The fields of a /reconstruct body, and the picture's file, two of a pair, or none.

    Raises:
        ServiceError: what was expected and what came.
    """
    if body.kind == MULTIPART:
        return await service.in_pool(_reconstruct_form, await _parts(body, service))
    _require_content(body)
    return await service.in_pool(_reconstruct_json, body.content)


def pair_names(names: Sequence[str | None]) -> list[str | None]:
    """What pairs of files are called: the names of the left and the right one, as far as they have some."""
    pairs = zip(names[::2], names[1::2], strict=True)
    return [", ".join(name for name in pair if name) or None for pair in pairs]


async def decode_files(
    files: Sequence[Upload], facts: Preprocessing, rule: Preprocess, service: Service
) -> Floats:
    """Files to model input [N, H, W, C] in 0-1, on threads that stop once nobody waits for it.

    Args:
        files: N, or 2 N for a model of two views.
        facts: of the model.
        rule: for pictures of other sizes than the model's.
        service: has the threads.

    Raises:
        ServiceError: which file, and what is wrong with it, or that there is too much to do.
    """
    pictures = _Pictures(files, facts, rule, service.settings)
    indices = range(0, len(files), facts.views)
    if len(indices) == 1 and all(is_quick(file.content, facts) for file in files):
        return pictures.decode(0)[None]
    pictures.check_declared()
    with service.room_for(len(files)):
        return np.stack(await service.pool.run_all([partial(pictures.decode, index) for index in indices]))


def is_quick(content: bytes, facts: Preprocessing) -> bool:
    """Whether it takes longer to hand a picture to a thread than to decode it: a PNG of the model's size.

    Such as data sets have. Of any other picture nobody knows what decoding it takes.
    """
    size = (facts.width, facts.height)
    is_small = 24 <= len(content) <= QUICK_BYTES and facts.width * facts.height <= QUICK_PIXELS
    return is_small and content.startswith(PNG_START) and struct.unpack_from(">II", content, 16) == size


class _TooManyPixels(PictureError):  # noqa: N818 - as its siblings
    """More pixels than one request may bring."""


class _Pictures:
    """The files of one request, of which several threads may decode some."""

    def __init__(
        self, files: Sequence[Upload], facts: Preprocessing, rule: Preprocess, settings: Settings
    ) -> None:
        self._files = files
        self._facts = facts
        self._rule = rule
        self._settings = settings
        self._pixels = 0  # of those whose decoding has begun
        self._lock = threading.Lock()

    def check_declared(self) -> None:
        """Refuse, before any is decoded, pictures whose headers say that together they have too many pixels.

        One that is too large by itself is not counted here: it gets an error of its own.

        Raises:
            TooManyPixelsError: together they have too many.
        """
        declared = (declared_pixels(file.content) for file in self._files)
        pixels = sum(each for each in declared if each <= self._settings.max_pixels)
        if pixels > self._settings.max_request_pixels:
            raise errors.TooManyPixelsError(self._too_many(pixels))

    def decode(self, first: int) -> Floats:
        """The image [H, W, C] in 0-1 whose first view is the file of that index. Blocks.

        Raises:
            ServiceError: which file, and what is wrong with it.
        """
        files = [file.content for file in self._files[first : first + self._facts.views]]
        try:
            return decode_image(files, self._facts, self._rule, self._settings.max_pixels, self._count)
        except PictureError as error:
            index = first + error.view
            filename = self._files[index].filename
            name = f" ({shown(filename)})" if filename else ""
            detail = f"image {index + 1} of {len(self._files)}{name}: {error}"
            raise _as_service_error(error, detail) from None

    def _count(self, pixels: int) -> None:
        """Count the pixels of a picture that is to be decoded.

        Raises:
            _TooManyPixels: with them the request has too many.
        """
        with self._lock:
            self._pixels += pixels
            if self._pixels > self._settings.max_request_pixels:
                raise _TooManyPixels(self._too_many(self._pixels))

    def _too_many(self, pixels: int) -> str:
        return (
            f"the pictures of a request may have {self._settings.max_request_pixels} pixels together "
            f"(CAPSNET_MAX_REQUEST_PIXELS), got {pixels} or more: send fewer at once"
        )


def decode_array(content: bytes, facts: Preprocessing, settings: Settings) -> Floats:
    """A .npy file to model input [N, H, W, C] in 0-1. Blocks.

    Raises:
        WrongArrayError: it does not fit the model, or is none.
        errors.TooManyPicturesError: N is over the limit.
    """
    try:
        pixels = read_array(content, facts)
    except ArrayError as error:
        raise errors.WrongArrayError(str(error)) from None
    if len(pixels) * facts.views > settings.max_images_per_request:
        raise too_many_images(settings.max_images_per_request, len(pixels) * facts.views)
    return pixels


def parse_json(text: str | bytes, place: str) -> Any:
    """Strict JSON: no NaN, and no name twice in an object.

    Raises:
        MalformedBodyError: it is not.
        InvalidFieldError: it lists more values than any request needs.
    """
    values = 1 + (text.count(",") if isinstance(text, str) else text.count(b","))  # at most
    if values > JSON_VALUES:
        raise InvalidFieldError(f"{place} may list {JSON_VALUES} values, got {values}")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_name_once)
    except (ValueError, RecursionError) as error:  # deep nesting is a RecursionError
        raise MalformedBodyError(f"{place} is not valid JSON: {error}") from None


def _as_service_error(error: PictureError, detail: str) -> errors.ServiceError:
    if isinstance(error, PictureTooLarge):
        return errors.PictureTooLargeError(detail)
    if isinstance(error, _TooManyPixels):
        return errors.TooManyPixelsError(detail)
    if isinstance(error, UnsupportedPicture):
        return errors.UnsupportedPictureError(detail)
    if isinstance(error, MismatchedViews):
        return errors.NoPairError(detail)
    return errors.UnreadablePictureError(detail)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read(request: Request) -> Body:
    """The whole body.

    Raises:
        CompressedBodyError: it is packed.
    """
    coding = ", ".join(request.headers.getlist("content-encoding") or ["identity"]).strip().lower()
    if coding != "identity":
        raise CompressedBodyError(
            f"{request.url.path} takes bodies as they are, since pictures are packed already; got "
            f"Content-Encoding: {shown(coding)}",
        )
    content_type = request.headers.get("content-type", "")
    return Body(await request.body(), content_type, _media_type(request), request.scope["path"])


def _require_content(body: Body) -> None:
    if not body.content:
        raise MalformedBodyError("the body is empty")


async def _parts(body: Body, service: Service) -> list[Part]:
    """The parts of a form; of a large one from a thread."""
    form = (body.content, body.content_type, service.settings.max_images_per_request)
    if len(body.content) <= QUICK_FORM_BYTES:
        return parse_form(*form)
    return await service.in_pool(parse_form, *form)


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


def _reconstruct_form(parts: list[Part]) -> tuple[ReconstructFields, list[Upload]]:
    fields: dict[str, Any] = {}
    pictures: list[Upload] = []
    for name, value in parts:
        if name not in ReconstructRequest.model_fields:
            known = ", ".join(ReconstructRequest.model_fields)
            raise InvalidFieldError(f"unknown field {shown(name)}; the fields are {known}")
        if name in fields:
            raise InvalidFieldError(f"the field {name} is given twice")
        if name == "image":
            if isinstance(value, str):
                raise InvalidFieldError("the field image must be a file")
            pictures.append(value)
            continue
        if isinstance(value, Upload):
            raise InvalidFieldError(f"the field {name} must be text, not a file")
        fields[name] = parse_json(value, f"the field {name}") if name in JSON_FIELDS else value
    checked = _validated(ReconstructFields, fields, "the form")
    has_picture, has_pose = bool(pictures), checked.pose is not None
    if has_picture == has_pose:  # both, or neither
        raise InvalidFieldError("give either image (a file) or pose and label")
    return checked, pictures


def _reconstruct_json(body: bytes) -> tuple[ReconstructFields, list[Upload]]:
    given = parse_json(body, "the body")
    if not isinstance(given, dict):
        raise InvalidFieldError(f"the body must be a JSON object, got {shown(given)}")
    checked = _validated(ReconstructRequest, given, "the body")
    if checked.image is None:
        return checked, []
    files = [checked.image] if isinstance(checked.image, str) else checked.image
    return checked, [Upload(None, _from_base64(file)) for file in files]


def _from_base64(file: str) -> bytes:
    try:
        # Line breaks are how base64 commands write it.
        return b64decode(file.encode().translate(None, SPACE), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedBodyError(f"image must be the base64 of a picture's file: {error}") from None


def _validated(model: type[Fields], given: dict[str, Any], place: str) -> Fields:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise errors.invalid_field(error.errors(), place) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{shown(name)} is given twice")
        names[name] = value
    return names
