"""Printed letters, for a network of digits to learn what is none."""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from export.contract.ink import place_ink

# H rows, W columns

LETTERS = "ACEFGHJKMNPRTUVWXacdefhjkmnprtuvwx"  # without those that look like printed or written digits
# Of matplotlib: everywhere the same. Pillow's own font is left for measuring how a network takes other fonts.
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif"),
    *("DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10"),
)
DRAWN = 96  # size of the type from which a picture is made, pixels
TURN = 10  # at most, degrees
WIDTH = (0.7, 1.1)  # compared with the font's
PEN = (0, 4)  # pixels that are added on each side of a line of the type


def draw_letters(count: int, rng: np.random.Generator, size: int = 28) -> NDArray[np.uint8]:
    """Print letters, light on black, and place them as the service places what it finds in a photograph.

    Args:
        count: how many, at least 1; one letter comes after the other.
        rng: decides fonts, thickness, width and turn; the same state gives the same pictures.
        size: height and width of a picture, pixels.

    Returns:
        uint8 [count, size, size], 0-255.
    """
    letters = [place_ink(_printed(LETTERS[n % len(LETTERS)], rng), size, size) for n in range(count)]
    return np.rint(255 * np.stack(letters)).astype(np.uint8)


def _printed(letter: str, rng: np.random.Generator) -> NDArray[np.float32]:
    """The letter alone in a larger picture, [H, W], 0-1 with black as 0."""
    picture = Image.new("L", (3 * DRAWN, 3 * DRAWN))
    middle = (1.5 * DRAWN, 1.5 * DRAWN)
    font, pen = _font(FONTS[rng.integers(len(FONTS))]), int(rng.integers(*PEN, endpoint=True))
    ImageDraw.Draw(picture).text(middle, letter, 255, font, anchor="mm", stroke_width=pen)
    picture = picture.rotate(rng.uniform(-TURN, TURN), Image.Resampling.BILINEAR)
    picture = picture.resize((round(picture.width * rng.uniform(*WIDTH)), picture.height))
    return np.asarray(picture, np.float32) / np.float32(255)


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    import matplotlib  # for its fonts alone; it takes long to import

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf" / f"{name}.ttf", DRAWN)
