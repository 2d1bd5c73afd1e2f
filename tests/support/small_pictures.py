"""Random pictures, by default of a tiny model's size, as arrays and as files."""

from io import BytesIO

import numpy as np
from PIL import Image

from tests.support.tiny_bundle import SIDE


def random_levels(seed: int = 0, height: int = SIDE, width: int = SIDE) -> np.ndarray:
    """Gray levels, uint8 [H, W]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def random_png(seed: int = 0) -> bytes:
    return to_png(random_levels(seed))


def to_png(levels: np.ndarray, **options: object) -> bytes:
    return saved(Image.fromarray(levels), "PNG", **options)


def saved(picture: Image.Image, image_format: str, **options: object) -> bytes:
    """The picture as a file of this format, with options of Pillow's."""
    file = BytesIO()
    picture.save(file, format=image_format, **options)
    return file.getvalue()


def to_npy(array: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()
