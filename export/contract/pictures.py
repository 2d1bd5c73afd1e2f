"""The bytes of an image file become an 8-bit picture, or an error that says why not.

The bytes come from strangers. The format is told by its signature and Pillow is offered that format
alone; the size is read from the header and checked before anything is decoded, and what is not shown is
not read.
"""

import io
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageStat, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from export.contract.deep_pictures import NoRangeError, find_levels, in_strips, parse_no_data
from export.contract.depths import (
    DepthError,
    check_deep_color,
    has_deep_color,
    is_unsigned,
    is_white_zero,
    unread_depth,
)
from export.contract.headers import MAX_EXIF_BYTES, HeaderError, declared_size, without_metadata
from export.contract.heif_files import can_read_heic, format_of_boxes

FORMATS = ("PNG", "JPEG", "WebP", "BMP", "TIFF", "GIF", "AVIF", "HEIC")
SIGNATURES = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "GIF": (b"GIF87a", b"GIF89a"),
}
MIN_SIDE_PIXELS = 8  # nothing can be recognized on fewer
MAX_SIDE_PIXELS = 65_535  # as far as JPEG goes; nobody means a longer picture
WORKING_SIDE_PIXELS = 1024  # larger pictures are shrunk by a whole factor, the shorter side to no less
LONG_SIDE_PIXELS = 4 * WORKING_SIDE_PIXELS  # very long ones by more, the longer side to no less
STRIP_PIXELS = 2**20  # converted and shrunk at once
ORIENTATION_TAG = 0x0112  # EXIF: how the camera was held
NO_DATA_TAG = 42113  # GDAL_NODATA: the number that stands for no data, as text
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class PictureError(ValueError):
    """Bytes that cannot become a model's input; the message says what was expected and what came.

    Attributes:
        view: which of the image's files is at fault, from 0; for who decodes several.
    """

    view: int = 0


class PictureFormatError(PictureError):
    """Not a file of a format that is read here."""


class PictureSizeError(PictureError):
    """More pixels than allowed."""


class ViewMismatchError(PictureError):
    """Two pictures that are no views of one pair."""


def read_picture(content: bytes, max_pixels: int, count: Callable[[int], None] | None = None) -> Image.Image:
    """Decode the first frame of an image file, upright and opaque.

    Transparency is filled with white or black: a drawing on a transparent sheet (less than half of it
    opaque) gets the one that its ink stands out from, any other picture the one it resembles. What is white
    in a picture of more than 8 bits or of floats its numbers tell, see `deep_pictures`. A picture whose
    shorter side is at least twice 1024 pixels, or its longer side twice 4096, is shrunk by a whole factor.

    Args:
        content: a PNG, JPEG, WebP, BMP, TIFF, GIF, AVIF or HEIC file.
        max_pixels: the largest width x height that is decoded.
        count: is told how many pixels that is before they are decoded, and may refuse them by raising.

    Returns:
        A loaded picture of mode L or RGB, each side at least 8 pixels.

    Raises:
        PictureFormatError: empty, not one of the formats, a TIFF of numbers that are not read, or HEIC
            without the extra `heif`.
        PictureSizeError: the header declares more than `max_pixels`, or a side longer than 65,535.
        PictureError: damaged, cut short, smaller than 8x8, or 16-bit color of which only low bits are used.
    """
    image_format = _format_of(content)
    if size := declared_size(image_format, content):
        _check_size(*size, max_pixels)
    try:
        shown = without_metadata(image_format, content)
        with Image.open(io.BytesIO(shown), formats=[image_format]) as picture:
            _check_size(*picture.size, max_pixels)
            if count:
                count(picture.width * picture.height)
            picture.draft(None, (WORKING_SIDE_PIXELS, WORKING_SIDE_PIXELS))  # JPEG decodes at 1/2, 1/4, 1/8
            if isinstance(picture, TiffImageFile):
                picture.is_animated = True  # of a file with one page Pillow would read every nested directory
            is_deep_color = has_deep_color(picture, content)
            picture.load()
            if is_deep_color:
                check_deep_color(picture)
            orientation = _orientation(picture)
            flat = _flatten(picture)
    except HeaderError as error:
        raise PictureError(f"{image_format} file {error}") from None
    except DepthError as error:
        raise PictureError(str(error)) from None
    except PictureError:
        raise
    except UnidentifiedImageError:  # its message names an object, not the fault
        if image_format == "TIFF" and (depth := unread_depth(content)):
            raise PictureFormatError(f"TIFF file has {depth}") from None
        raise PictureError(f"{image_format} file is damaged or cut short in its header") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureSizeError(f"picture may have {max_pixels} pixels; {error}") from None
    except Exception as error:  # on damaged files Pillow raises nearly everything there is
        raise PictureError(f"{image_format} file is damaged or cut short: {error}") from error
    return flat.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else flat


def declared_pixels(content: bytes) -> int:
    """Width x height by a header that tells them at a fixed place (PNG, GIF, WebP); 0 of any other file."""
    try:
        size = declared_size(_format_of(content), content)
    except PictureError:
        return 0
    return math.prod(size) if size else 0


def _format_of(content: bytes) -> str:
    """Tell the format by the file's first bytes."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    for name, starts in SIGNATURES.items():
        if content.startswith(starts):
            return name
    boxed = format_of_boxes(content)
    if boxed == "HEIF" and not can_read_heic():
        raise PictureFormatError("HEIC files need pi-heif where they are read: pip install -e '.[heif]'")
    if boxed:
        return boxed
    came = f"{len(content)} bytes that start with {content[:8]!r}" if content else "no bytes at all"
    raise PictureFormatError(f"expected a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file; came {came}")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise PictureSizeError(
            f"picture is {width}x{height}, {width * height} pixels; at most {max_pixels} are read"
        )
    if max(width, height) > MAX_SIDE_PIXELS:
        raise PictureSizeError(
            f"picture is {width}x{height}; a side may have at most {MAX_SIDE_PIXELS} pixels"
        )
    if min(width, height) < MIN_SIDE_PIXELS:
        raise PictureError(
            f"picture is {width}x{height}; expected at least {MIN_SIDE_PIXELS}x{MIN_SIDE_PIXELS} pixels"
        )


def _orientation(picture: Image.Image) -> int:
    """EXIF's; 1, upright, where there is none or it cannot be read: the picture beside it is sound."""
    if len(picture.info.get("exif") or b"") > MAX_EXIF_BYTES:
        return 1
    try:
        found = picture.getexif().get(ORIENTATION_TAG)
    except Exception:  # as above, Pillow raises nearly everything there is
        return 1
    return found if isinstance(found, int) else 1


def _flatten(picture: Image.Image) -> Image.Image:
    """Make a loaded picture L or RGB, 8 bits, opaque and of a working size."""
    if picture.mode.startswith("I") or picture.mode == "F":
        return _of_eight_bits(picture)
    if picture.has_transparency_data:
        return _on_a_ground(_shrunk(picture, "RGBA"))
    return _shrunk(picture, "L" if picture.mode in {"1", "L"} else "RGB")


def _of_eight_bits(picture: Image.Image) -> Image.Image:
    """A picture of more bits or of floats, scaled by its range instead of clipped."""
    width, height = picture.size
    rows = max(1, STRIP_PIXELS // width)
    unsigned = is_unsigned(picture)
    numbers = _unsigned_numbers if unsigned else _numbers
    strips = (picture.crop((0, start, width, end)) for start, end in in_strips(height, rows))
    kind = "unsigned" if unsigned else "float" if picture.mode == "F" else "signed"
    declared = picture.tag_v2.get(NO_DATA_TAG) if isinstance(picture, TiffImageFile) else None
    try:
        levels = find_levels(map(numbers, strips), kind, parse_no_data(declared))
    except NoRangeError as error:
        raise PictureError(str(error)) from None
    small = _shrunk(picture, "F", lambda strip: Image.fromarray(levels.apply(numbers(strip))))
    shown = np.asarray(np.rint(np.asarray(small)), np.uint8)
    return Image.fromarray(255 - shown if is_white_zero(picture) else shown)


def _numbers(strip: Image.Image) -> NDArray[np.float32]:
    return np.asarray(strip.convert("F"))


def _unsigned_numbers(strip: Image.Image) -> NDArray[np.float32]:
    """Pillow keeps unsigned numbers of 32 bits as signed ones of the same bits."""
    return np.asarray(strip).view(np.uint32).astype(np.float32)


def _shrunk(
    picture: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image] | None = None
) -> Image.Image:
    """The picture of a working size, converted to the mode; strip by strip: a converted whole costs much."""
    convert = convert or (lambda strip: strip if strip.mode == mode else strip.convert(mode))
    short, long = sorted(picture.size)
    factor = max(short // WORKING_SIDE_PIXELS, min(long // LONG_SIDE_PIXELS, short // MIN_SIDE_PIXELS))
    if factor < 2:
        return convert(picture)
    width, height = picture.size
    small = Image.new(mode, (-(-width // factor), -(-height // factor)))
    rows = max(1, STRIP_PIXELS // (width * factor))  # of the small picture
    for row in range(0, small.height, rows):
        strip = picture.crop((0, row * factor, width, min((row + rows) * factor, height)))
        small.paste(convert(strip).reduce(factor), (0, row))
    return small


def _on_a_ground(picture: Image.Image) -> Image.Image:
    """Lay an RGBA picture on white or black, see `read_picture`."""
    alpha = picture.getchannel("A")
    shown = ImageChops.multiply(picture.convert("L"), alpha)
    (opacity,), (light,) = ImageStat.Stat(alpha).sum, ImageStat.Stat(shown).sum
    is_light = light >= opacity / 2
    is_drawing = opacity / (picture.width * picture.height) < 127.5
    ground = "white" if is_light != is_drawing or opacity == 0 else "black"
    opaque = Image.new("RGB", picture.size, ground)
    opaque.paste(picture, mask=alpha)
    return opaque
