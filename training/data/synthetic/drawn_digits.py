"""Digits drawn from pen strokes: a stand-in for MNIST that needs no download and no license.

A digit is a few strokes, a stroke a few smooth pieces that meet at corners, a piece a spline through a
handful of points in the unit square (x to the right, y down). A `Hand` says how somebody writes: which
form of each digit, how slanted, how wide, how unsteady.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

# N digits, P points of a stroke

Stroke = NDArray[np.float64]  # [P, 2]: x and y, evenly spaced along the pen's way
Piece = tuple[tuple[float, float], ...]

POINT_SPACING = 0.02  # of the unit square; 0.4 pixels in a digit of 20 pixels
BOX = 20 / 28  # MNIST fits the ink's box into 20 of 28 pixels
CENTER = 14.5 / 28  # and puts its center of mass on the middle of pixel 14
THICKNESS = (2.0, 3.6)  # stroke width in a frame of 28 pixels, about MNIST's range

# Every digit has several forms; a form is a list of strokes, a stroke a list of pieces.
FORMS: dict[int, tuple[tuple[tuple[Piece, ...], ...], ...]] = {
    0: (
        (
            (
                ((0.50, 0.00), (0.20, 0.16), (0.08, 0.52), (0.22, 0.88), (0.52, 1.00))
                + ((0.80, 0.84), (0.92, 0.48), (0.80, 0.13), (0.52, 0.00)),
            ),
        ),
        (
            (
                ((0.70, 0.06), (0.36, 0.04), (0.10, 0.34), (0.10, 0.74), (0.38, 1.00))
                + ((0.74, 0.90), (0.92, 0.56), (0.84, 0.20), (0.58, 0.02), (0.44, 0.08)),
            ),
        ),
    ),
    1: (
        ((((0.52, 0.00), (0.50, 0.50), (0.48, 1.00)),),),
        ((((0.26, 0.26), (0.42, 0.14), (0.54, 0.00)), ((0.54, 0.00), (0.53, 0.50), (0.52, 1.00))),),
        (
            (((0.26, 0.24), (0.42, 0.14), (0.52, 0.00)), ((0.52, 0.00), (0.51, 0.50), (0.50, 1.00))),
            (((0.22, 1.00), (0.50, 0.99), (0.80, 1.00)),),
        ),
    ),
    2: (
        (
            (
                (
                    (0.10, 0.26),
                    (0.26, 0.05),
                    (0.58, 0.01),
                    (0.82, 0.20),
                    (0.74, 0.46),
                    (0.44, 0.74),
                    (0.08, 1.00),
                ),
                ((0.08, 1.00), (0.50, 0.97), (0.94, 0.97)),
            ),
        ),
        (
            (
                (
                    (0.14, 0.20),
                    (0.38, 0.01),
                    (0.68, 0.04),
                    (0.80, 0.28),
                    (0.66, 0.58),
                    (0.38, 0.90),
                    (0.16, 0.98),
                )
                + ((0.06, 0.88), (0.18, 0.78), (0.42, 0.84), (0.68, 0.96), (0.98, 0.90)),
            ),
        ),
    ),
    3: (
        (
            (
                ((0.14, 0.14), (0.40, 0.00), (0.72, 0.08), (0.76, 0.30), (0.58, 0.44), (0.36, 0.48)),
                ((0.36, 0.48), (0.66, 0.50), (0.86, 0.70), (0.74, 0.92), (0.42, 1.00), (0.10, 0.90)),
            ),
        ),
        (
            (
                (
                    (0.16, 0.08),
                    (0.46, 0.00),
                    (0.76, 0.12),
                    (0.72, 0.34),
                    (0.50, 0.45),
                    (0.42, 0.48),
                    (0.54, 0.50),
                )
                + ((0.82, 0.62), (0.84, 0.82), (0.58, 0.99), (0.28, 0.98), (0.08, 0.84)),
            ),
        ),
    ),
    4: (
        (
            (((0.18, 0.04), (0.12, 0.30), (0.10, 0.56)), ((0.10, 0.56), (0.46, 0.56), (0.92, 0.50))),
            (((0.74, 0.00), (0.70, 0.48), (0.66, 1.00)),),
        ),
        (
            (((0.66, 0.00), (0.36, 0.34), (0.04, 0.66)), ((0.04, 0.66), (0.50, 0.66), (0.96, 0.64))),
            (((0.66, 0.00), (0.66, 0.50), (0.64, 1.00)),),
        ),
        (
            (((0.22, 0.02), (0.10, 0.24), (0.12, 0.46), (0.40, 0.54), (0.74, 0.40)),),
            (((0.82, 0.02), (0.76, 0.48), (0.66, 1.00)),),
        ),
    ),
    5: (
        (
            (
                ((0.28, 0.04), (0.24, 0.22), (0.18, 0.42)),
                ((0.18, 0.42), (0.46, 0.38), (0.78, 0.52), (0.82, 0.78), (0.52, 0.99), (0.10, 0.94)),
            ),
            (((0.28, 0.04), (0.58, 0.03), (0.90, 0.00)),),
        ),
        (
            (
                ((0.88, 0.02), (0.58, 0.00), (0.30, 0.04)),
                ((0.30, 0.04), (0.24, 0.22), (0.22, 0.44)),
                ((0.22, 0.44), (0.52, 0.40), (0.80, 0.60), (0.72, 0.90), (0.40, 1.00), (0.08, 0.86)),
            ),
        ),
    ),
    6: (
        (
            (
                ((0.70, 0.00), (0.40, 0.18), (0.18, 0.52), (0.18, 0.84), (0.46, 1.00))
                + ((0.78, 0.88), (0.80, 0.66), (0.54, 0.54), (0.28, 0.66), (0.19, 0.84)),
            ),
        ),
        (
            (
                ((0.44, 0.00), (0.24, 0.28), (0.14, 0.62), (0.26, 0.94), (0.56, 0.99))
                + ((0.82, 0.82), (0.74, 0.60), (0.46, 0.56), (0.20, 0.74)),
            ),
        ),
    ),
    7: (
        ((((0.08, 0.08), (0.48, 0.06), (0.90, 0.02)), ((0.90, 0.02), (0.60, 0.46), (0.40, 1.00))),),
        (
            (((0.08, 0.06), (0.48, 0.06), (0.88, 0.02)), ((0.88, 0.02), (0.62, 0.44), (0.40, 1.00))),
            (((0.32, 0.52), (0.58, 0.50), (0.84, 0.50)),),
        ),
        (
            (
                ((0.08, 0.24), (0.10, 0.12), (0.12, 0.03)),
                ((0.12, 0.03), (0.48, 0.06), (0.90, 0.02)),
                ((0.90, 0.02), (0.66, 0.38), (0.54, 1.00)),
            ),
        ),
    ),
    8: (
        (
            (
                ((0.76, 0.16), (0.52, 0.00), (0.26, 0.10), (0.26, 0.30), (0.52, 0.47), (0.78, 0.68))
                + (
                    (0.74, 0.92),
                    (0.46, 1.00),
                    (0.20, 0.86),
                    (0.28, 0.64),
                    (0.54, 0.46),
                    (0.78, 0.26),
                    (0.74, 0.10),
                ),
            ),
        ),
        (
            (
                (
                    (0.50, 0.00),
                    (0.26, 0.12),
                    (0.30, 0.36),
                    (0.50, 0.46),
                    (0.72, 0.34),
                    (0.72, 0.10),
                    (0.50, 0.00),
                ),
            ),
            (
                (
                    (0.50, 0.46),
                    (0.20, 0.60),
                    (0.18, 0.88),
                    (0.50, 1.00),
                    (0.82, 0.86),
                    (0.78, 0.60),
                    (0.50, 0.46),
                ),
            ),
        ),
    ),
    9: (
        (
            (
                (
                    (0.78, 0.14),
                    (0.50, 0.00),
                    (0.22, 0.14),
                    (0.20, 0.38),
                    (0.44, 0.48),
                    (0.70, 0.34),
                    (0.80, 0.10),
                ),
                ((0.80, 0.10), (0.76, 0.52), (0.68, 1.00)),
            ),
        ),
        (
            (
                (
                    (0.78, 0.18),
                    (0.54, 0.01),
                    (0.24, 0.12),
                    (0.18, 0.36),
                    (0.42, 0.48),
                    (0.70, 0.36),
                    (0.80, 0.12),
                ),
                ((0.80, 0.12), (0.80, 0.56), (0.66, 0.90), (0.36, 1.00), (0.14, 0.90)),
            ),
        ),
    ),
}


@dataclass(frozen=True)
class Hand:
    """How somebody writes.

    Attributes:
        forms: which form of each digit this hand uses.
        slant: x added per unit of height; 0.2 leans to the right.
        width: how wide a digit is compared with its height.
        wobble: size of the deviations from the ideal form, in units of the digit's height.
    """

    forms: tuple[int, ...]
    slant: float
    width: float
    wobble: float


def draw_hand(rng: np.random.Generator) -> Hand:
    """Make up a hand."""
    return Hand(
        forms=tuple(int(rng.integers(len(FORMS[digit]))) for digit in range(10)),
        slant=rng.uniform(-0.1, 0.35),
        width=rng.uniform(0.55, 0.95),
        wobble=rng.uniform(0.01, 0.03),
    )


def draw_strokes(digit: int, hand: Hand, rng: np.random.Generator) -> list[Stroke]:
    """Write a digit once.

    Args:
        digit: 0 to 9.
        hand: how it is written.
        rng: two draws in the same hand differ by the hand's wobble.

    Returns:
        The strokes, float64 [P, 2] each, in a box about 1 high; y grows downwards.
    """
    frequency, phase = rng.normal(0, 4, (3, 2, 2)), rng.uniform(0, 2 * np.pi, (3, 2))
    return [_written(stroke, hand, frequency, phase) for stroke in _ideal(digit, hand.forms[digit])]


@cache
def _ideal(digit: int, form: int) -> tuple[Stroke, ...]:
    """The strokes of a digit before a hand bends them."""
    return tuple(smooth_stroke(pieces) for pieces in FORMS[digit][form])


def draw_digits(labels: NDArray[np.integer], rng: np.random.Generator, size: int = 28) -> NDArray[np.uint8]:
    """Draw digits as MNIST shows them: light ink on black, fitted into 20/28 of the frame, centered by mass.

    Args:
        labels: the digits to draw, integers [N], each 0 to 9.
        rng: decides hands, thickness and wobble; the same state gives the same pictures.
        size: height and width of a picture in pixels.

    Returns:
        uint8 [N, size, size], 0-255.
    """
    pictures = np.zeros((len(labels), size, size), np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        points = np.concatenate(draw_strokes(int(label), draw_hand(rng), rng))
        picture[:] = ink(points, rng.uniform(*THICKNESS) * size / 28, size)
    return pictures


def smooth_stroke(pieces: tuple[Piece, ...]) -> Stroke:
    """Join smooth pieces at their corners and space the points evenly, float64 [P, 2]."""
    way = np.concatenate([_spline(np.array(piece)) for piece in pieces])
    length = np.concatenate([[0.0], np.hypot(*np.diff(way, axis=0).T).cumsum()])
    even = np.linspace(0, length[-1], max(2, round(length[-1] / POINT_SPACING)))
    return np.stack([np.interp(even, length, way[:, axis]) for axis in (0, 1)], axis=1)


def _spline(knots: NDArray[np.float64], steps: int = 12) -> NDArray[np.float64]:
    """A Catmull-Rom spline through the knots, [P, 2]; the end knots are mirrored outwards."""
    ends = 2 * knots[[0, -1]] - knots[[1, -2]]
    k = np.concatenate([ends[:1], knots, ends[1:]])
    t = np.linspace(0, 1, steps, endpoint=False)[None, :, None]
    a, b, c, d = (k[i : len(k) - 3 + i, None] for i in range(4))
    curve = b + t / 2 * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)))
    return np.concatenate([curve.reshape(-1, 2), knots[-1:]])


def _written(
    stroke: Stroke, hand: Hand, frequency: NDArray[np.float64], phase: NDArray[np.float64]
) -> Stroke:
    """Bend a stroke by a smooth field, the same for the whole digit so that what touches stays touching."""
    waves = np.sin(np.einsum("pk,wak->pwa", stroke, frequency) + phase)
    x, y = (stroke + hand.wobble * waves.sum(axis=1)).T
    return np.stack([(x - 0.5) * hand.width + (0.5 - y) * hand.slant, y], axis=1)


def ink(points: Stroke, thickness: float, size: int) -> NDArray[np.uint8]:
    """Ink evenly spaced points with a round pen, fitted and centered as `draw_digits` says.

    Args:
        points: of all strokes, float64 [P, 2], of any size.
        thickness: of the pen, pixels.
        size: height and width of the picture, pixels.

    Returns:
        uint8 [size, size], 0-255.
    """
    pixels = points * (BOX * size - thickness) / np.ptp(points, axis=0).max()
    pixels += CENTER * size - pixels.mean(axis=0)
    first = _coverage(pixels, thickness, size)  # ink on ink weighs nothing: weigh it, move it, draw again
    middles = np.arange(size) + 0.5
    center = np.array([first.sum(axis=0) @ middles, first.sum(axis=1) @ middles]) / first.sum()
    coverage = _coverage(pixels + CENTER * size - center, thickness, size)
    return np.asarray(np.rint(coverage * 255), np.uint8)


def _coverage(pixels: Stroke, thickness: float, size: int) -> NDArray[np.float64]:
    """How much of each pixel lies under the pen, 0-1, [size, size]."""
    middles = np.arange(size) + 0.5
    across, down = (np.square(middles - pixels[:, axis, None]) for axis in (0, 1))  # [P, size]
    distance = np.sqrt((down[:, :, None] + across[:, None]).min(axis=0))
    return np.clip(thickness / 2 - distance + 0.5, 0, 1)
