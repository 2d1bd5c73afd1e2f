"""Pictures that show no digit, for a network to learn what is none: scribbles, spots and noise."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training.data.synthetic.drawn_digits import THICKNESS, ink, smooth_stroke

# Few strokes through few points look like signs, which is what is hard; fewer would look like digits.
STROKES = (3, 4)
KNOTS = (8, 11)  # of all strokes
SPOTS = (2, 8)  # per side of a picture


def draw_scribbles(count: int, rng: np.random.Generator, size: int = 28) -> NDArray[np.uint8]:
    """Make up pictures of nothing, light on black: of eight, six have strokes, one has spots, one is noise.

    Args:
        count: how many.
        rng: the same state gives the same pictures.
        size: height and width of a picture, pixels.

    Returns:
        uint8 [count, size, size], 0-255.
    """
    makers = [_strokes] * 6 + [_spots, _noise]
    return np.stack([makers[number % len(makers)](size, rng) for number in range(count)])


def _strokes(size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Smooth strokes through random points, in the size and thickness of a digit."""
    knots = rng.random((rng.integers(*KNOTS, endpoint=True), 2))
    pieces = np.array_split(knots, rng.integers(*STROKES, endpoint=True))
    strokes = [smooth_stroke((tuple(map(tuple, piece)),)) for piece in pieces]
    return ink(np.concatenate(strokes), rng.uniform(*THICKNESS) * size / 28, size)


def _spots(size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Light spots with soft edges."""
    points = rng.integers(*SPOTS, endpoint=True)
    coarse = Image.fromarray(rng.integers(0, 256, (points, points), np.uint8))
    smooth = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), np.float32)
    return np.clip((smooth - 128) * rng.uniform(1, 4), 0, 255).astype(np.uint8)


def _noise(size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Every pixel on its own; some of them, or all, are light."""
    light = rng.integers(0, 256, (size, size)) * (rng.random((size, size)) < rng.uniform(0.05, 1))
    return (light * rng.uniform(0.3, 1)).astype(np.uint8)
