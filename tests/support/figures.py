"""What a figure of an experiment shows, told by its colors."""

from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage


def areas(file: Path, color: str | tuple[int, int, int], least_pixels: int = 10) -> int:
    """How many connected areas of exactly this color a PNG has; smaller ones are edges of something else."""
    labels, _ = ndimage.label(_is(file, color))
    return int((np.bincount(labels.ravel())[1:] >= least_pixels).sum())


def _is(file: Path, color: str | tuple[int, int, int]) -> NDArray[np.bool_]:
    rgb = [round(255 * part) for part in to_rgb(color)] if isinstance(color, str) else color
    return (np.asarray(Image.open(file).convert("RGB")) == rgb).all(axis=2)
