"""Printed letters, for a network of digits to learn what is none."""

from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from training.data.synthetic.drawn_digits import BOX, CENTER

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
    """Print letters, light on black, each fitted into the frame and centered as the digits of MNIST are.

    Args:
        count: how many, at least 1; one letter comes after the other.
        rng: decides fonts, thickness, width and turn; the same state gives the same pictures.
        size: height and width of a picture, pixels.

    Returns:
        uint8 [count, size, size], 0-255.
    """
    return np.stack([_centered(_printed(LETTERS[n % len(LETTERS)], rng), size) for n in range(count)])


def _printed(letter: str, rng: np.random.Generator) -> Image.Image:
    """The letter alone, with no margin: light on black, up to about DRAWN pixels high and wide."""
    picture = Image.new("L", (3 * DRAWN, 3 * DRAWN))
    middle = (1.5 * DRAWN, 1.5 * DRAWN)
    font, pen = _font(FONTS[rng.integers(len(FONTS))]), int(rng.integers(*PEN, endpoint=True))
    ImageDraw.Draw(picture).text(middle, letter, 255, font, anchor="mm", stroke_width=pen)
    picture = picture.rotate(rng.uniform(-TURN, TURN), Image.Resampling.BILINEAR)
    picture = picture.crop(picture.getbbox())
    return picture.resize((max(1, round(picture.width * rng.uniform(*WIDTH))), picture.height))


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts/ttf" / f"{name}.ttf", DRAWN)


def _centered(picture: Image.Image, size: int) -> NDArray[np.uint8]:
    """Fit it into 20/28 of the size, with its center of mass at 14.5/28 of it, uint8 [size, size]."""
    scale = BOX * size / max(picture.size)
    shape = [max(1, round(side * scale)) for side in picture.size]
    small = np.asarray(picture.resize(shape, Image.Resampling.BOX))  # [H, W]
    mass = small / small.sum()
    places = []
    for axis in (0, 1):
        center = mass.sum(axis=1 - axis) @ (np.arange(small.shape[axis]) + 0.5)
        places.append(int(np.clip(round(CENTER * size - center), 0, size - small.shape[axis])))
    whole = np.zeros((size, size), np.uint8)
    whole[places[0] : places[0] + small.shape[0], places[1] : places[1] + small.shape[1]] = small
    return whole
