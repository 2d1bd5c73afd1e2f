"""What kind of numbers an image file holds, where Pillow does not tell or does not read them.

Of 16-bit color Pillow keeps the upper 8 bits of each channel; unsigned numbers of 32 bits it takes for signed
ones.
"""

import io
from typing import cast

from PIL import Image
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    PHOTOMETRIC_INTERPRETATION,
    SAMPLEFORMAT,
    ImageFileDirectory_v2,
    TiffImageFile,
)

PNG_DEPTH = 24  # where a PNG says how many bits a number of it has
PLANAR_CONFIGURATION = 284  # a tag of TIFF; 2: one channel after the other
FEWEST_LEVELS = 64  # of the 256 that the upper 8 bits hold; 14 bits in a 16-bit file reach no more
SAMPLE_FORMATS = {1: "unsigned integers", 2: "signed integers", 3: "floats"}
READ = "read are 1 to 8 bits a channel, and in gray unsigned 12, integers of 16 or 32, and floats of 32 bits"


class DepthError(ValueError):
    """Numbers of which Pillow keeps too little; the message says what to send instead."""


def has_deep_color(picture: Image.Image, content: bytes) -> bool:
    """Whether a picture that is not loaded yet has more than 8 bits in each of several channels."""
    if picture.mode.startswith("I") or picture.mode == "F":
        return False
    if isinstance(picture, TiffImageFile):
        return max(picture.tag_v2.get(BITSPERSAMPLE, (1,))) > 8
    return picture.format == "PNG" and content[PNG_DEPTH] > 8


def check_deep_color(picture: Image.Image) -> None:
    """Refuse a loaded picture of 16-bit color of which Pillow has kept next to nothing.

    Raises:
        DepthError: all colors use at most 14 of the 16 bits, or the channels lie one after the other, which
            Pillow misreads.
    """
    extremes = cast(tuple[tuple[int, int], ...], picture.getextrema())  # of several channels
    levels = dict(zip(picture.getbands(), extremes, strict=True))
    least, opaque = levels.pop("A", (255, 255))
    brightest = max(most for _, most in levels.values())
    is_stencil = brightest == 0 and least < opaque  # black ink: only the transparency shows it
    is_planar = isinstance(picture, TiffImageFile) and picture.tag_v2.get(PLANAR_CONFIGURATION, 1) == 2
    if is_planar or (brightest < FEWEST_LEVELS and not is_stencil):
        where = "with its channels apart" if is_planar else "that uses at most 14 of the 16 bits"
        raise DepthError(
            f"picture is 16-bit color {where}, which is not read; send 8 bits a channel, or 16-bit gray"
        )


def is_unsigned(picture: Image.Image) -> bool:
    """Whether a picture of mode I holds unsigned numbers of 32 bits, which Pillow takes for signed ones."""
    if picture.mode != "I" or not isinstance(picture, TiffImageFile):
        return False
    tags = picture.tag_v2
    return bool(tags.get(BITSPERSAMPLE) == (32,) and tags.get(SAMPLEFORMAT, (1,)) == (1,))


def is_white_zero(picture: Image.Image) -> bool:
    """Whether 0 is white in a gray picture; such a TIFF Pillow inverts itself up to 8 bits, no deeper one."""
    return isinstance(picture, TiffImageFile) and picture.tag_v2.get(PHOTOMETRIC_INTERPRETATION) == 0


def unread_depth(content: bytes) -> str | None:
    """Which numbers a sound TIFF holds that are not read, and which are; None if it is damaged."""
    try:
        TiffImageFile(io.BytesIO(content))
    except Exception as error:  # on damaged files Pillow raises nearly everything there is
        return _described(content) if str(error) == "unknown pixel mode" else None
    return None


def _described(content: bytes) -> str:
    tags = ImageFileDirectory_v2(content[:16] if content[2] == 43 else content[:8])
    file = io.BytesIO(content)
    file.seek(tags.next)
    tags.load(file)
    bits = tags.get(BITSPERSAMPLE) or (1,)
    kind = SAMPLE_FORMATS.get(max(tags.get(SAMPLEFORMAT) or (1,)), "numbers")
    how = f"channels: {len(bits)}" + (", 0 is white" if tags.get(PHOTOMETRIC_INTERPRETATION) == 0 else "")
    return f"{kind} of {max(bits)} bits ({how}), which are not read; {READ}"
