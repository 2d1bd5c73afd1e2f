"""Model output as PNG files."""

from base64 import b64encode
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# P pictures, H rows, W columns, C channels

Floats = NDArray[np.float32]

# Colors of an overlay's objects in their order: red and green as in Fig. 5 of Sabour et al. 2017, then the
# rest of the hue circle but yellow, which is red and green overlapping. After the tenth they begin again.
PALETTE = (
    *("#ff0000", "#00ff00", "#0000ff", "#ff8000", "#ff00ff"),
    *("#00ffff", "#80ff00", "#8000ff", "#ff0080", "#0080ff"),
)


def to_png(pixels: Floats) -> bytes:
    """A PNG file of pixels [H, W, C] in 0-1; 1 channel makes it gray, 3 RGB, 2 gray views side by side."""
    file = BytesIO()
    _picture(pixels).save(file, "PNG")
    return file.getvalue()


def to_base64_pngs(pictures: Floats) -> list[str]:
    """Pictures [P, H, W, C] in 0-1, each as the base64 of a PNG file."""
    return [b64encode(to_png(pixels)).decode() for pixels in pictures]


def to_png_grid(pictures: Floats, columns: int) -> bytes:
    """Pictures [P, H, W, C] in 0-1 row by row in one PNG, pixel for pixel, nothing between them."""
    pictures = _views_side_by_side(pictures)
    _, height, width, channels = pictures.shape
    rows = pictures.reshape(-1, columns, height, width, channels)
    return to_png(rows.transpose(0, 2, 1, 3, 4).reshape(-1, columns * width, channels))


def brightness(pictures: Floats) -> Floats:
    """How bright the PNG files of pictures [P, H, W, C] are, [P, H, W] in 0-1, in steps of 1/255.

    A colored pixel's is its luma (ITU-R BT.601), as Pillow converts to gray. Of pairs of views W is twice as
    wide, as they stand side by side.
    """
    gray = [np.asarray(_picture(pixels).convert("L"), np.float32) for pixels in pictures]
    return np.stack(gray) / np.float32(255)


def overlay(gray: Floats) -> Floats:
    """Objects [P, H, W] in 0-1, each in its color of the palette, added up: RGB [H, W, 3] in 0-1."""
    colors = [tuple(bytes.fromhex(color_of(index)[1:])) for index in range(len(gray))]
    added: Floats = np.einsum("phw,pc->hwc", gray, np.array(colors, np.float32) / 255)
    return np.clip(added, 0, 1)


def color_of(index: int) -> str:
    """The color of an overlay's object, such as "#ff0000"."""
    return PALETTE[index % len(PALETTE)]


def _picture(pixels: Floats) -> Image.Image:
    """Pixels [H, W, C] in 0-1 as a picture of 8 bits, gray or RGB."""
    levels = np.rint(np.clip(_views_side_by_side(pixels), 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels)


def _views_side_by_side(pixels: Floats) -> Floats:
    """Pairs of views [..., H, W, 2] as pictures [..., H, 2 W, 1], the left one left; others as they are."""
    if pixels.shape[-1] != 2:
        return pixels
    *leading, width, views = pixels.shape
    return np.moveaxis(pixels, -1, -2).reshape(*leading, views * width, 1)
