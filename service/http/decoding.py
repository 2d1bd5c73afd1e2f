"""Picture files and arrays to model input."""

import struct
import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from export.contract.arrays import ArrayError, array_values, in_range
from export.contract.manifest import Preprocessing
from export.contract.pictures import (
    PictureError,
    PictureFormatError,
    PictureSizeError,
    ViewMismatchError,
    declared_pixels,
)
from export.contract.preprocess import Rule
from service import errors
from service.errors import shown
from service.http.multipart import Upload, too_many_images
from service.http.picture_pool import PicturePool
from service.inference.model_input import decode_image
from service.observability.timings import end_part
from service.settings import Settings

# N images, H rows, W columns, C channels. A pair of views is one image of two channels, and two files.

Floats = NDArray[np.float32]

PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # width and height follow
INLINE_BYTES = 16_384
INLINE_PIXELS = 64 * 64


async def decode_files(
    files: Sequence[Upload], facts: Preprocessing, rule: Rule, settings: Settings, pool: PicturePool
) -> Floats:
    """Files to model input [N, H, W, C] in 0-1, on threads that stop once nobody waits for the result.

    Args:
        files: N, or 2 N for a model of two views.
        facts: of the model.
        rule: for pictures of other sizes than the model's.
        settings: limits of pictures and requests.
        pool: has the threads.

    Raises:
        ServiceError: which file, and what is wrong with it, or that the pool is full.
    """
    pictures = _Pictures(files, facts, rule, settings)
    indices = range(0, len(files), facts.views)
    try:
        if len(indices) == 1 and all(decodes_inline(file.content, facts) for file in files):
            return pictures.decode(0)[None]
        pictures.check_declared()
        with pool.room_for(len(files)):
            return np.stack(await pool.run_all([partial(pictures.decode, index) for index in indices]))
    finally:
        end_part("decode")


def decodes_inline(content: bytes, facts: Preprocessing) -> bool:
    """Whether handing a picture to a thread takes longer than decoding it: it is a PNG of the model's size.

    Data sets have such pictures. How long any other picture takes is unknown.
    """
    size = (facts.width, facts.height)
    is_small = 24 <= len(content) <= INLINE_BYTES and facts.width * facts.height <= INLINE_PIXELS
    return is_small and content.startswith(PNG_START) and struct.unpack_from(">II", content, 16) == size


def decode_array(content: bytes, facts: Preprocessing, max_images: int) -> Floats:
    """A .npy file to model input [N, H, W, C] in 0-1. Blocks.

    Raises:
        WrongArrayError: it is not an array, or does not fit the model.
        TooManyPicturesError: more than `max_images`, in which a pair of views counts twice.
    """
    try:
        values = array_values(content, facts)
        if (images := len(values) * facts.views) > max_images:  # before they take four times the memory
            raise too_many_images(max_images, images)
        return in_range(values)
    except ArrayError as error:
        raise errors.WrongArrayError(str(error)) from None


class _PixelLimitError(PictureError):
    """More pixels than one request may have."""


class _Pictures:
    """The files of one request, of which several threads may decode some."""

    def __init__(self, files: Sequence[Upload], facts: Preprocessing, rule: Rule, settings: Settings) -> None:
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
            _PixelLimitError: with them the request has too many.
        """
        with self._lock:
            self._pixels += pixels
            if self._pixels > self._settings.max_request_pixels:
                raise _PixelLimitError(self._too_many(self._pixels))

    def _too_many(self, pixels: int) -> str:
        return (
            f"the pictures of a request may have {self._settings.max_request_pixels} pixels together "
            f"(CAPSNET_MAX_REQUEST_PIXELS), got {pixels} or more: send fewer at once"
        )


def _as_service_error(error: PictureError, detail: str) -> errors.ServiceError:
    if isinstance(error, PictureSizeError):
        return errors.PictureTooLargeError(detail)
    if isinstance(error, _PixelLimitError):
        return errors.TooManyPixelsError(detail)
    if isinstance(error, PictureFormatError):
        return errors.UnsupportedPictureError(detail)
    if isinstance(error, ViewMismatchError):
        return errors.NoPairError(detail)
    return errors.UnreadablePictureError(detail)
