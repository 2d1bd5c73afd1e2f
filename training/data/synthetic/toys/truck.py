"""Trucks: a cab ahead, a load behind."""

import numpy as np

from training.data.synthetic.toys.parts import Draw, ball, block, oval, rod, wheels
from training.data.synthetic.toys.solids import Frustum, Solid


def truck(draw: Draw) -> list[Solid]:
    """A chassis on wheels, a cab with or without a bonnet, and a box, tank, tipper or flatbed."""
    half, wide = draw.between(0.7, 0.95), draw.between(0.21, 0.29)
    radius = draw.between(0.09, 0.15)
    floor = radius * draw.between(1.1, 1.6)
    cab_end = half - draw.between(0.3, 0.5)
    solids: list[Solid] = [
        block((0, 0, floor - 0.03), (0, 0, floor + 0.05), (half, wide * 0.7)),
        *wheels(half - draw.between(0.15, 0.25), 2 * wide + 0.04, radius, 0.11),
    ]
    for axle in range(1 + draw.below(3)):
        solids += wheels(-half + 0.18 + axle * 2.15 * radius, 2 * wide + 0.04, radius, 0.12)
    solids += _cab(draw, half, cab_end, wide, floor)
    return solids + _load(draw, -half, cab_end - draw.between(0.02, 0.08), wide, floor + 0.05)


def _cab(draw: Draw, front: float, back: float, wide: float, floor: float) -> list[Solid]:
    tall = draw.between(0.32, 0.5)
    bonnet = draw.between(0.35, 0.55) * (front - back) if draw.chance(0.45) else 0.0
    lean = draw.between(0.0, 0.08)
    middle, half = (back + front - bonnet) / 2, (front - bonnet - back) / 2
    solids: list[Solid] = [
        block((middle, 0, floor), (middle, 0, floor + tall * 0.55), (half, wide)),
        block(
            (middle, 0, floor + tall * 0.55),
            (middle - lean / 2, 0, floor + tall),
            (half, wide),
            (half - lean / 2, wide * draw.between(0.85, 0.97)),
        ),
    ]
    if bonnet:
        x, high = front - bonnet / 2, tall * draw.between(0.4, 0.6)
        solids.append(block((x, 0, floor), (x, 0, floor + high), (bonnet / 2, wide * draw.between(0.7, 1.0))))
    if draw.chance(0.3):
        solids.append(rod((back + 0.03, wide, floor), (back + 0.03, wide, floor + tall * 1.3), 0.025, 0.025))
    return solids


def _load(draw: Draw, back: float, front: float, wide: float, floor: float) -> list[Solid]:
    middle, half = (back + front) / 2, (front - back) / 2
    kind = draw.below(5)
    tall = draw.between(0.3, 0.62)
    if kind in (0, 4):  # a box
        return [block((middle, 0, floor), (middle, 0, floor + tall), (half, wide * draw.between(0.95, 1.1)))]
    if kind == 1:  # a tank
        return _tank(draw, back, front, wide, floor)
    low = tall * draw.between(0.25, 0.7)
    if kind == 2:  # a tipper, wider above, with or without a heap in it
        solids: list[Solid] = [
            block(
                (middle, 0, floor + 0.03), (middle, 0, floor + low), (half * 0.85, wide * 0.75), (half, wide)
            )
        ]
        if draw.chance(0.5):
            solids.append(ball((middle, 0, floor + low), (half * 0.8, wide * 0.8, draw.between(0.1, 0.24))))
        return solids
    return _flatbed(draw, middle, half, wide, floor, low)


def _tank(draw: Draw, back: float, front: float, wide: float, floor: float) -> list[Solid]:
    high = wide * draw.between(0.8, 1.05)
    first, axis = np.array([back, 0.0, floor + high]), np.array([front - back, 0.0, 0.0])
    tank = Frustum(first, axis, np.array([0, wide, 0.0]), np.array([0, 0, high]), 1.0)
    x = (back + front) / 2
    return [tank, oval((x, 0, floor + high), (x, 0, floor + 2 * high + 0.06), (0.08, 0.08))]


def _flatbed(draw: Draw, middle: float, half: float, wide: float, floor: float, low: float) -> list[Solid]:
    """Three low walls around a bed, and cases on some."""
    thin, wall = 0.02, low * 0.6 + 0.05
    solids: list[Solid] = [block((middle, 0, floor), (middle, 0, floor + 0.04), (half, wide))]
    for side in (-1, 1):
        y = side * (wide - thin)
        solids.append(block((middle, y, floor), (middle, y, floor + wall), (half, thin)))
    solids.append(
        block((middle - half + thin, 0, floor), (middle - half + thin, 0, floor + wall), (thin, wide))
    )
    for _ in range(draw.below(3)):
        x, size = middle + draw.between(-0.6, 0.6) * half, draw.between(0.08, 0.14)
        solids.append(block((x, 0, floor), (x, 0, floor + 2.2 * size), (size, size)))
    return solids
