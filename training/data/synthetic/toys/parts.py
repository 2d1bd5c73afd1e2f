"""What toys are put together from: balls, limbs, blocks, wheels. Lengths are in units of the toy's own.

x points ahead, y to the toy's left, z up.
"""

import math
from dataclasses import fields, replace

import numpy as np

from training.data.synthetic.toys.rays import dot, unit
from training.data.synthetic.toys.solids import Ellipsoid, Frustum, Prismoid, Solid

Place = tuple[float, float, float]
Part = Ellipsoid | Frustum | Prismoid
AXES = dict(zip("xyz", np.eye(3), strict=True))


class Choices:
    """The choices that make a toy; the same seed makes the same ones."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def between(self, minimum: float, maximum: float) -> float:
        """A number, all between these equally likely."""
        return minimum + (maximum - minimum) * float(self._rng.random())

    def chance(self, probability: float) -> bool:
        """True in so many cases."""
        return bool(self._rng.random() < probability)

    def below(self, count: int) -> int:
        """A whole number from 0 on."""
        return int(self._rng.random() * count)


def polar(length: float, rise: float) -> tuple[float, float]:
    """Ahead and up: a way of some length that rises by so many degrees."""
    return length * math.cos(math.radians(rise)), length * math.sin(math.radians(rise))


def ball(center: Place, radii: Place, rise: float = 0.0) -> Ellipsoid:
    """An ellipsoid whose front is tilted up by so many degrees."""
    ahead, up = polar(1.0, rise)
    u, w = np.array([ahead, 0, up]), np.array([-up, 0, ahead])
    return Ellipsoid(np.array(center), u * radii[0], AXES["y"] * radii[1], w * radii[2])


def rod(start: Place, end: Place, radius: float, end_radius: float) -> Frustum:
    """A round bar between two places, cut straight."""
    first, axis = np.array(start), np.array(end) - np.array(start)
    other = AXES["x"] if abs(axis[0]) < 0.8 * math.sqrt(dot(axis, axis)) else AXES["y"]
    u = unit(np.cross(axis, other))
    return Frustum(first, axis, u * radius, np.cross(unit(axis), u) * radius, end_radius / radius)


def limb(start: Place, end: Place, radius: float, end_radius: float) -> list[Solid]:
    """A rod with a ball at its end, so that another may go on from there at any angle."""
    return [rod(start, end, radius, end_radius), ball(end, (end_radius,) * 3)]


def oval(start: Place, end: Place, half: tuple[float, float], ratio: float = 1.0) -> Frustum:
    """An upright bar of oval cross-section, so thick ahead and to the side."""
    first = np.array(start)
    return Frustum(first, np.array(end) - first, AXES["x"] * half[0], AXES["y"] * half[1], ratio)


def block(
    start: Place,
    end: Place,
    half: tuple[float, float],
    end_half: tuple[float, float] | None = None,
    plane: str = "xy",
) -> Prismoid:
    """All between two rectangles.

    Args:
        start: center of the first one.
        end: center of the other one.
        half: half the sides of the first.
        end_half: of the other; the same if not given.
        plane: the axes along which the sides lie.
    """
    ratios = (1.0, 1.0) if end_half is None else (end_half[0] / half[0], end_half[1] / half[1])
    u, v = (AXES[name] * extent for name, extent in zip(plane, half, strict=True))
    return Prismoid(np.array(start), np.array(end), u, v, ratios)


def wheels(x: float, track: float, radius: float, width: float) -> list[Solid]:
    """One on either side, standing on the table; `track` is the distance between their outer faces."""
    return [
        rod((x, side * track / 2, radius), (x, side * (track / 2 - width), radius), radius, radius)
        for side in (-1, 1)
    ]


def both(part: Part) -> list[Solid]:
    """A part and its mirror image on the other side of the toy."""
    return [part, mirrored(part)]


def mirrored(part: Part) -> Part:
    """A part on the other side of the toy."""
    flip = np.array([1.0, -1.0, 1.0])
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    vectors = {name: value * flip for name, value in values.items() if isinstance(value, np.ndarray)}
    return replace(part, **vectors)
