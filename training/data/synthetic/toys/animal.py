"""Four-legged animals."""

from training.data.synthetic.toys.parts import Choices, ball, limb, oval, polar, rod
from training.data.synthetic.toys.solids import Solid


def animal(choose: Choices) -> list[Solid]:
    """From a dachshund to a giraffe: body, legs, neck, head, tail, and what some wear on their heads."""
    length, thick, tall = choose.between(0.34, 0.55), choose.between(0.15, 0.27), choose.between(0.22, 0.62)
    belly = tall + 0.75 * thick
    chest = thick * choose.between(0.85, 1.1)
    sits = choose.chance(0.3)  # or rears
    rise = choose.between(0.15, 0.4) if sits else choose.between(-0.03, 0.1)
    belly = max(thick, belly - rise / 2)
    front, rear = (length * 0.5, 0, belly + rise), (-length * 0.5, 0, belly)
    solids: list[Solid] = [ball(rear, (thick,) * 3), *limb(rear, front, thick, chest)]
    solids += _legs(choose, length * 0.55, thick * 0.55, (front[2], belly))
    top = front[2] + chest * 0.35
    return (
        solids
        + _head(choose, length * 0.65, top, chest)
        + _tail(choose, -length * 0.5 - thick * 0.85, belly, thick)
    )


def _legs(choose: Choices, apart: float, aside: float, heights: tuple[float, float]) -> list[Solid]:
    """Each a little ahead of or behind its place, as in a walk."""
    thick, stride = choose.between(0.045, 0.1), choose.between(0.0, 0.14)
    solids: list[Solid] = []
    for x, y, way in ((apart, aside, 1), (apart, -aside, -1), (-apart, aside, -1), (-apart, -aside, 1)):
        height = heights[0] if x > 0 else heights[1]
        step = way * stride * choose.between(0.3, 1.0)
        solids.append(rod((x + step, y, 0), (x, y, height), thick * 0.9, thick * 1.25))
    return solids


def _head(choose: Choices, x: float, z: float, thick: float) -> list[Solid]:
    size = choose.between(0.11, 0.18)
    ahead, up = polar(choose.between(0.16, 0.62), choose.between(15, 75))
    x, z, neck_x, neck_z = x + ahead, z + up, x, z
    neck = choose.between(0.4, 0.7) * thick
    muzzle, droop = choose.between(1.1, 2.1) * size, choose.between(5, 45)
    reach, fall = polar(muzzle, -droop)
    narrow = choose.between(0.45, 0.75) * size
    solids: list[Solid] = [
        rod((neck_x - 0.08, 0, neck_z - 0.08), (x, 0, z), neck, max(0.8 * size, neck * 0.6)),
        ball((x, 0, z), (size * 1.2, size * 0.9, size), -droop),
        *limb((x, 0, z), (x + reach, 0, z + fall), size * 0.8, narrow),
    ]
    return solids + _on_the_head(choose, x, z, size)


def _on_the_head(choose: Choices, x: float, z: float, size: float) -> list[Solid]:
    """Ears, and horns on some, a mane on others."""
    long, wide = choose.between(0.35, 1.2) * size, choose.between(0.25, 0.5) * size
    kind = choose.below(4)
    solids: list[Solid] = []
    for side in (-1, 1):
        y = side * size * 0.65
        solids.append(
            ball((x - 0.3 * size, y * 1.2, z + 0.7 * size + 0.4 * long), (wide * 0.6, wide, long), 15)
        )
        if kind == 0:
            tip = (x - choose.between(-0.5, 1.5) * size, y * choose.between(1.2, 2.4), z + 2.4 * size)
            solids.append(rod((x, y * 0.6, z + 0.5 * size), tip, 0.28 * size, 0.08 * size))
    if kind == 1:
        solids.append(
            oval((x - 0.9 * size, 0, z - 1.3 * size), (x - 0.3 * size, 0, z + 1.1 * size), (size, 0.6 * size))
        )
    return solids


def _tail(choose: Choices, x: float, z: float, thick: float) -> list[Solid]:
    back, up = polar(choose.between(0.12, 0.5), choose.between(-75, 50))
    radius = choose.between(0.025, 0.06)
    return limb((x + 0.05, 0, z + 0.3 * thick), (x - back, 0, z + 0.3 * thick + up), radius, radius * 0.8)
