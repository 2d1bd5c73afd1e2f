"""Human figures, standing or walking, each with its own build, pose and gear."""

import math

from training.data.synthetic.toys.parts import Choices, Place, ball, block, limb, oval, rod
from training.data.synthetic.toys.solids import Solid


def human(choose: Choices) -> list[Solid]:
    """Legs, trunk, head, two arms in poses of their own; for some a skirt, a hat, a load on the back."""
    bend = choose.between(0.4, 0.75) if choose.chance(0.3) else 1.0  # knees; 1 for those who stand
    hip, trunk = choose.between(0.42, 0.56) * bend, choose.between(0.34, 0.42)
    shoulder = hip + trunk
    wide, deep = choose.between(0.13, 0.21), choose.between(0.08, 0.14)
    neck = shoulder + 0.05
    lean = choose.between(-0.04, 0.08)
    solids: list[Solid] = [
        oval((0, 0, hip - 0.04), (lean, 0, shoulder), (deep, wide * choose.between(0.65, 0.9)), 1.12),
        ball((lean, 0, shoulder), (deep * 1.05, wide * 1.05, 0.07)),
        ball((0, 0, hip), (deep * 1.1, wide * 0.9, 0.1)),
        rod((lean, 0, shoulder), (lean, 0, neck + 0.06), 0.05, 0.05),
    ]
    solids += _legs(choose, wide * 0.55, hip, 0.3 * (1 - bend))
    for side in (-1, 1):
        solids += _arm(choose, (lean, side * wide, shoulder - 0.01), side)
    return solids + _head(choose, lean, neck) + _gear(choose, lean, hip, shoulder, deep, wide)


def _legs(choose: Choices, aside: float, hip: float, knees: float) -> list[Solid]:
    thick, stride, spread = choose.between(0.06, 0.095), choose.between(0, 0.22), choose.between(0.0, 0.1)
    solids: list[Solid] = []
    for side in (-1, 1):
        foot = (side * stride, side * (aside + spread), 0.0)
        knee = (
            side * stride * 0.65 + knees + choose.between(0.0, 0.08),
            side * (aside + spread * 0.5),
            hip * 0.5,
        )
        solids += limb((0, side * aside, hip), knee, thick * 1.15, thick * 0.85)
        solids.append(rod(knee, (foot[0], foot[1], 0.03), thick * 0.85, thick * 0.65))
        solids.append(block((foot[0] + 0.05, foot[1], 0), (foot[0] + 0.04, foot[1], 0.06), (0.11, 0.05)))
    return solids


def _arm(choose: Choices, shoulder: Place, side: int) -> list[Solid]:
    """Upper arm and forearm; 0 degrees hangs down, 90 is level, ahead or to the side or between."""
    thick, long = choose.between(0.045, 0.065), choose.between(0.17, 0.22)
    raised, aside = 5 + 145 * choose.between(0, 1) ** 2, choose.between(5, 85)
    elbow = _reach(shoulder, long, raised, aside, side)
    hand = _reach(elbow, long, raised + choose.between(0, 90), aside + choose.between(-40, 20), side)
    return [*limb(shoulder, elbow, thick * 1.15, thick), *limb(elbow, hand, thick, thick * 0.85)]


def _reach(start: Place, long: float, raised: float, aside: float, side: int) -> Place:
    up, turn = math.radians(raised), math.radians(aside)
    level = long * math.sin(up)
    return (
        start[0] + level * math.cos(turn),
        start[1] + side * level * math.sin(turn),
        start[2] - long * math.cos(up),
    )


def _head(choose: Choices, x: float, z: float) -> list[Solid]:
    size = choose.between(0.075, 0.11)
    middle = z + 0.04 + size
    solids: list[Solid] = [ball((x + 0.01, 0, middle), (size * 1.05, size * 0.9, size * 1.15))]
    kind = choose.below(4)
    if kind == 0:  # a hat with a brim
        solids.append(
            oval((x, 0, middle + 0.4 * size), (x, 0, middle + 0.55 * size), (1.9 * size, 1.8 * size))
        )
        solids.append(
            oval((x, 0, middle + 0.5 * size), (x, 0, middle + 1.7 * size), (size, 0.95 * size), 0.8)
        )
    elif kind == 1:  # a helmet
        solids.append(ball((x - 0.01, 0, middle + 0.25 * size), (1.3 * size, 1.2 * size, 1.1 * size)))
    return solids


def _gear(choose: Choices, x: float, hip: float, shoulder: float, deep: float, wide: float) -> list[Solid]:
    kind = choose.below(4)
    if kind == 0:  # a skirt or a coat
        low = hip * choose.between(0.1, 0.5)
        flare = choose.between(1.3, 1.9)
        return [oval((0, 0, low), (0, 0, hip + 0.12), (deep * flare * 1.1, wide * flare), 0.95 / flare)]
    if kind == 1:  # something carried on the back
        size = choose.between(0.08, 0.13)
        back = x - deep - 0.6 * size
        return [block((back, 0, hip + 0.06), (back, 0, shoulder), (size * 0.8, size * 1.3))]
    return []
