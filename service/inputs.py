"""Request bodies: what came in, as files, arrays and fields that have been checked."""

import binascii
import json
import struct
import threading
from base64 import b64decode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from export.contract.arrays import ArrayError, read_array
from export.contract.manifest import Manifest, Preprocessing
from export.contract.pictures import (
    MismatchedViews,
    PictureError,
    PictureTooLarge,
    UnsupportedPicture,
    read_picture,
)
from export.contract.preprocess import views_to_input
from service import errors
from service.errors import (
    InvalidFieldError,
    MalformedBodyError,
    TooManyPicturesError,
    UnsupportedBodyError,
    shown,
)
from service.schemas import Preprocess, ReconstructFields, ReconstructRequest
from service.settings import Settings
from service.state import Service

# N images, H rows, W columns, C channels. A pair of views is one image of two channels, and two files.

Floats = NDArray[np.float32]
Fields = TypeVar("Fields", bound=ReconstructFields)

MULTIPART = "multipart/form-data"
NPY = "application/x-npy"
NPY_SIGNATURE = b"\x93NUMPY"
JSON_FIELDS = {"pose", "version", "perturbations", "sweep"}  # in a form, which has only text
FORM_FIELDS = 32  # text parts of a form; no route has so many fields
# The most that a request needs is half of it: a pose of 4,096 values, as many perturbations of two each, and
# as many dimensions of a sweep. In memory a value takes dozens of times the bytes it has in a body.
JSON_VALUES = 32_768
SPACE = b" \t\r\n"
PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # width and height follow
QUICK_BYTES = 16_384
QUICK_PIXELS = 64 * 64


@dataclass(frozen=True)
class Upload:
    """A file as it came; `filename` is None where the client gave none."""

    filename: str | None
    content: bytes


@dataclass(frozen=True)
class ClassifyBody:
    """A body of /classify or /segment as it came: picture files, or one .npy file."""

    files: list[Upload]
    is_array: bool


ReconstructBody = bytes | list[tuple[str, str | Upload]]  # JSON, or the parts of a form in order


@dataclass(frozen=True)
class Images:
    """Model input: pixels [N, H, W, C] in 0-1, and where each image came from.

    Attributes:
        filenames: of each image; of a pair both in one, as in "left.png, right.png".
    """

    filenames: list[str | None]
    pixels: Floats


async def read_classify(request: Request, settings: Settings) -> ClassifyBody:
    """The whole body of /classify or /segment: files in multipart, one raw file, or an array.

    Raises:
        ServiceError: what was expected and what came.
    """
    kind = media_type(request)
    if kind == MULTIPART:
        return ClassifyBody(await _image_files(request, settings), is_array=False)
    if kind == "application/json":
        raise UnsupportedBodyError(
            f"{request.url.path} takes {MULTIPART} with the field images, one raw image, or {NPY}; "
            "got application/json"
        )
    content = await _raw_body(request)  # whatever it is called: `curl --data-binary` calls it a form
    if kind != NPY and content.startswith(NPY_SIGNATURE):
        raise UnsupportedBodyError(
            f"the body is a .npy array: send it with the header Content-Type: {NPY}; got {shown(kind)}"
        )
    return ClassifyBody([Upload(None, content)], is_array=kind == NPY)


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


async def read_reconstruct(request: Request, settings: Settings) -> ReconstructBody:
    """The whole /reconstruct body.

    Raises:
        ServiceError: what was expected and what came.
    """
    kind = media_type(request)
    if kind == MULTIPART:
        return await _read_form(request, settings)
    if kind not in {"application/json", ""}:
        raise UnsupportedBodyError(f"/reconstruct takes application/json or {MULTIPART}; got {shown(kind)}")
    return await _raw_body(request)


def pair_names(names: Sequence[str | None]) -> list[str | None]:
    """What pairs of files are called: the names of the left and the right one, as far as they have some."""
    pairs = zip(names[::2], names[1::2], strict=True)
    return [", ".join(name for name in pair if name) or None for pair in pairs]


async def check_reconstruct(
    body: ReconstructBody, service: Service
) -> tuple[ReconstructFields, list[Upload]]:
    """The fields of a /reconstruct body, and the picture's file, two of a pair, or none.

    Raises:
        ServiceError: what was expected and what came.
    """
    if isinstance(body, bytes):
        return await service.in_pool(_reconstruct_json, body)
    return await service.in_pool(_reconstruct_form, body)


async def decode_files(
    files: Sequence[Upload], facts: Preprocessing, rule: Preprocess, service: Service
) -> Floats:
    """Files to model input [N, H, W, C] in 0-1, in a thread that stops once nobody waits for it.

    Args:
        files: N, or 2 N for a model of two views.
        facts: of the model.
        rule: for pictures of other sizes than the model's.
        service: has the thread.

    Raises:
        ServiceError: which file, and what is wrong with it, or that there is too much to do.
    """
    given_up = threading.Event()
    if len(files) == facts.views and all(is_quick(file.content, facts) for file in files):
        return decode_pictures(files, facts, rule, service.settings.max_pixels, given_up)
    try:
        with service.room_for(len(files)):
            return await service.in_pool(
                decode_pictures, files, facts, rule, service.settings.max_pixels, given_up
            )
    finally:
        given_up.set()


def is_quick(content: bytes, facts: Preprocessing) -> bool:
    """Whether it takes longer to hand a picture to a thread than to decode it: a PNG of the model's size.

    Such as data sets have. Of any other picture nobody knows what decoding it takes.
    """
    size = (facts.width, facts.height)
    is_small = 24 <= len(content) <= QUICK_BYTES and facts.width * facts.height <= QUICK_PIXELS
    return is_small and content.startswith(PNG_START) and struct.unpack_from(">II", content, 16) == size


def decode_pictures(
    uploads: Sequence[Upload],
    facts: Preprocessing,
    rule: Preprocess,
    max_pixels: int,
    given_up: threading.Event,
) -> Floats:
    """Files, N or 2 N for a model of two views, to model input [N, H, W, C] in 0-1. Blocks.

    Raises:
        ServiceError: which file, and what is wrong with it.
        DeadlineExceededError: `given_up` was set; looked at before each file.
    """
    views = facts.views
    pixels = np.empty((len(uploads) // views, facts.height, facts.width, facts.channels), np.float32)
    pictures: list[Image.Image] = []  # the views of one image
    for index, upload in enumerate(uploads):
        if given_up.is_set():
            raise errors.DeadlineExceededError(f"given up after {index} of {len(uploads)} images")
        try:
            pictures.append(read_picture(upload.content, max_pixels))
            if len(pictures) == views:
                pixels[index // views] = views_to_input(pictures, facts, rule)
                pictures.clear()
        except PictureError as error:
            name = f" ({shown(upload.filename)})" if upload.filename else ""
            raise _as_service_error(error, f"image {index + 1} of {len(uploads)}{name}: {error}") from None
    return pixels


def decode_array(content: bytes, facts: Preprocessing, settings: Settings) -> Floats:
    """A .npy file to model input [N, H, W, C] in 0-1. Blocks.

    Raises:
        WrongArrayError: it does not fit the model, or is none.
        TooManyPicturesError: N is over the limit.
    """
    try:
        pixels = read_array(content, facts)
    except ArrayError as error:
        raise errors.WrongArrayError(str(error)) from None
    if len(pixels) * facts.views > settings.max_images_per_request:
        raise _too_many_images(len(pixels) * facts.views, settings)
    return pixels


def media_type(request: Request) -> str:
    """The Content-Type without its parameters, "" where there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


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
    if isinstance(error, UnsupportedPicture):
        return errors.UnsupportedPictureError(detail)
    if isinstance(error, MismatchedViews):
        return errors.NoPairError(detail)
    return errors.UnreadablePictureError(detail)


async def _raw_body(request: Request) -> bytes:
    body = await request.body()
    if not body:
        raise MalformedBodyError("the body is empty")
    return body


async def _image_files(request: Request, settings: Settings) -> list[Upload]:
    uploads = []
    for name, value in await _read_form(request, settings):
        if name != "images":
            raise InvalidFieldError(
                f"unknown field {shown(name)}; {request.url.path} takes files in the field 'images'"
            )
        if isinstance(value, str):
            raise InvalidFieldError(
                "the field images must hold files; got text (with curl: -F images=@7.png)"
            )
        uploads.append(value)
    if not uploads:
        raise InvalidFieldError(
            f"the multipart body has no part; {request.url.path} takes files in the field 'images'"
        )
    return uploads


def _reconstruct_form(parts: list[tuple[str, str | Upload]]) -> tuple[ReconstructFields, list[Upload]]:
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


class _InMemoryParser(MultiPartParser):
    """Keeps files in memory: the body is bounded already, and no writable /tmp is needed.

    Attributes:
        is_complete: the closing boundary came; without it Starlette drops the last part in silence.
    """

    spool_max_size = 2**62
    is_complete = False

    def on_end(self) -> None:
        """Called at the closing boundary."""
        self.is_complete = True

    async def parse(self) -> FormData:
        """As Starlette's, but of a whole body only."""
        self.stream = self._to_the_boundary(self.stream)
        return await super().parse()

    async def _to_the_boundary(self, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for chunk in stream:
            yield chunk
        if not self.is_complete:  # raised here, inside `parse`, which then closes its files
            raise MultiPartException("it ends before its closing boundary")


async def _read_form(request: Request, settings: Settings) -> list[tuple[str, str | Upload]]:
    """The parts of a multipart body in order: text, or files."""
    parser = _InMemoryParser(
        request.headers,
        request.stream(),
        max_files=settings.max_images_per_request,
        max_fields=FORM_FIELDS,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if error.message.startswith("Too many files"):
            raise _too_many_images("more", settings) from None
        raise MalformedBodyError(f"the multipart body cannot be read: {error.message}") from None
    try:
        return [(name, await _part(value)) for name, value in form.multi_items()]
    finally:
        await form.close()


async def _part(value: str | UploadFile) -> str | Upload:
    return value if isinstance(value, str) else Upload(value.filename or None, await value.read())


def _too_many_images(came: int | str, settings: Settings) -> TooManyPicturesError:
    return TooManyPicturesError(
        f"a request may bring {settings.max_images_per_request} images "
        f"(CAPSNET_MAX_IMAGES_PER_REQUEST), got {came}"
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for name, value in pairs:
        if name in names:
            raise ValueError(f"{shown(name)} is given twice")
        names[name] = value
    return names
