"""Model output as PNG files."""

from base64 import b64encode
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# P pictures, H rows, W columns, C channels

Floats = NDArray[np.float32]


def to_png(pixels: Floats) -> bytes:
    """A PNG file of pixels [H, W, C] in 0-1; 1 channel makes it grey, 3 RGB."""
    levels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(file, "PNG")
    return file.getvalue()


def to_base64_pngs(pictures: Floats) -> list[str]:
    """Pictures [P, H, W, C] in 0-1, each as the base64 of a PNG file."""
    return [b64encode(to_png(pixels)).decode() for pixels in pictures]


def to_png_grid(pictures: Floats, columns: int) -> bytes:
    """Pictures [P, H, W, C] in 0-1 row by row in one PNG, pixel for pixel, nothing between them."""
    _, height, width, channels = pictures.shape
    rows = pictures.reshape(-1, columns, height, width, channels)
    return to_png(rows.transpose(0, 2, 1, 3, 4).reshape(-1, columns * width, channels))
