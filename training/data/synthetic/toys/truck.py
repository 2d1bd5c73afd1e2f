"""Trucks: a cab ahead, a load behind."""

import numpy as np

from training.data.synthetic.toys.parts import Choices, ball, block, oval, rod, wheels
from training.data.synthetic.toys.solids import Frustum, Solid


def truck(choose: Choices) -> list[Solid]:
    """A chassis on wheels, a cab with or without a bonnet, and a box, tank, tipper or flatbed."""
    half, wide = choose.between(0.7, 0.95), choose.between(0.21, 0.29)
    radius = choose.between(0.09, 0.15)
    floor = radius * choose.between(1.1, 1.6)
    cab_end = half - choose.between(0.3, 0.5)
    solids: list[Solid] = [
        block((0, 0, floor - 0.03), (0, 0, floor + 0.05), (half, wide * 0.7)),
        *wheels(half - choose.between(0.15, 0.25), 2 * wide + 0.04, radius, 0.11),
    ]
    for axle in range(1 + choose.below(3)):
        solids += wheels(-half + 0.18 + axle * 2.15 * radius, 2 * wide + 0.04, radius, 0.12)
    solids += _cab(choose, half, cab_end, wide, floor)
    return solids + _load(choose, -half, cab_end - choose.between(0.02, 0.08), wide, floor + 0.05)


def _cab(choose: Choices, front: float, back: float, wide: float, floor: float) -> list[Solid]:
    tall = choose.between(0.32, 0.5)
    bonnet = choose.between(0.35, 0.55) * (front - back) if choose.chance(0.45) else 0.0
    lean = choose.between(0.0, 0.08)
    middle, half = (back + front - bonnet) / 2, (front - bonnet - back) / 2
    solids: list[Solid] = [
        block((middle, 0, floor), (middle, 0, floor + tall * 0.55), (half, wide)),
        block(
            (middle, 0, floor + tall * 0.55),
            (middle - lean / 2, 0, floor + tall),
            (half, wide),
            (half - lean / 2, wide * choose.between(0.85, 0.97)),
        ),
    ]
    if bonnet:
        x, high = front - bonnet / 2, tall * choose.between(0.4, 0.6)
        solids.append(
            block((x, 0, floor), (x, 0, floor + high), (bonnet / 2, wide * choose.between(0.7, 1.0)))
        )
    if choose.chance(0.3):
        solids.append(rod((back + 0.03, wide, floor), (back + 0.03, wide, floor + tall * 1.3), 0.025, 0.025))
    return solids


def _load(choose: Choices, back: float, front: float, wide: float, floor: float) -> list[Solid]:
    middle, half = (back + front) / 2, (front - back) / 2
    kind = choose.below(5)
    tall = choose.between(0.3, 0.62)
    if kind in (0, 4):  # a box
        return [
            block((middle, 0, floor), (middle, 0, floor + tall), (half, wide * choose.between(0.95, 1.1)))
        ]
    if kind == 1:  # a tank
        return _tank(choose, back, front, wide, floor)
    low = tall * choose.between(0.25, 0.7)
    if kind == 2:  # a tipper, wider above, with or without a heap in it
        solids: list[Solid] = [
            block(
                (middle, 0, floor + 0.03), (middle, 0, floor + low), (half * 0.85, wide * 0.75), (half, wide)
            )
        ]
        if choose.chance(0.5):
            solids.append(ball((middle, 0, floor + low), (half * 0.8, wide * 0.8, choose.between(0.1, 0.24))))
        return solids
    return _flatbed(choose, middle, half, wide, floor, low)


def _tank(choose: Choices, back: float, front: float, wide: float, floor: float) -> list[Solid]:
    high = wide * choose.between(0.8, 1.05)
    first, axis = np.array([back, 0.0, floor + high]), np.array([front - back, 0.0, 0.0])
    tank = Frustum(first, axis, np.array([0, wide, 0.0]), np.array([0, 0, high]), 1.0)
    x = (back + front) / 2
    return [tank, oval((x, 0, floor + high), (x, 0, floor + 2 * high + 0.06), (0.08, 0.08))]


def _flatbed(
    choose: Choices, middle: float, half: float, wide: float, floor: float, low: float
) -> list[Solid]:
    """Three low walls around a bed, and cases on some."""
    thin, wall = 0.02, low * 0.6 + 0.05
    solids: list[Solid] = [block((middle, 0, floor), (middle, 0, floor + 0.04), (half, wide))]
    for side in (-1, 1):
        y = side * (wide - thin)
        solids.append(block((middle, y, floor), (middle, y, floor + wall), (half, thin)))
    solids.append(
        block((middle - half + thin, 0, floor), (middle - half + thin, 0, floor + wall), (thin, wide))
    )
    for _ in range(choose.below(3)):
        x, size = middle + choose.between(-0.6, 0.6) * half, choose.between(0.08, 0.14)
        solids.append(block((x, 0, floor), (x, 0, floor + 2.2 * size), (size, size)))
    return solids
