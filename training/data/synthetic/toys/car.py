"""Cars, from open roadsters to vans."""

from training.data.synthetic.toys.parts import Choices, ball, block, both, rod, wheels
from training.data.synthetic.toys.solids import Solid


def car(choose: Choices) -> list[Solid]:
    """A body on four wheels, with a cabin of one of several forms."""
    half, wide = choose.between(0.62, 0.85), choose.between(0.25, 0.34)
    radius = choose.between(0.1, 0.15)
    floor, waist = radius * choose.between(0.5, 0.9), choose.between(0.27, 0.36)
    axle = half * choose.between(0.55, 0.68)
    solids: list[Solid] = [
        *wheels(axle, 2 * wide + 0.05, radius, 0.12),
        *wheels(-axle, 2 * wide + 0.05, radius, 0.12),
    ]
    if choose.chance(0.35):
        solids += _round(choose, half, wide, floor, waist) + _fenders(axle, wide, radius)
    else:
        solids += _angular(choose, half, wide, floor, waist)
    if choose.chance(0.15):
        x = -half + 0.06
        solids.append(block((x, 0, waist + 0.1), (x - 0.02, 0, waist + 0.13), (0.07, wide * 0.95)))
        solids += both(rod((x, wide * 0.7, waist - 0.05), (x, wide * 0.7, waist + 0.11), 0.02, 0.02))
    return solids


def _round(choose: Choices, half: float, wide: float, floor: float, waist: float) -> list[Solid]:
    """A long ball for a body; a beetle's roof, or none."""
    middle = (floor + waist) / 2
    solids: list[Solid] = [
        ball((0, 0, middle), (half, wide * 0.98, (waist - floor) * 0.75)),
        block((0, 0, floor), (0, 0, middle), (half * 0.8, wide * 0.9)),
    ]
    if choose.chance(0.3):
        return solids + _open(choose, half, wide, waist)
    x = choose.between(-0.2, 0.0) * half
    return [
        *solids,
        ball(
            (x, 0, waist - 0.08), (half * choose.between(0.55, 0.7), wide * 0.85, choose.between(0.25, 0.34))
        ),
    ]


def _angular(choose: Choices, half: float, wide: float, floor: float, waist: float) -> list[Solid]:
    """A block that narrows above the bumpers, and a cabin: of a saloon, an estate, a van, or none."""
    fall = choose.between(0.0, 0.08)
    bumper = floor + (waist - floor) * choose.between(0.4, 0.7)
    solids: list[Solid] = [
        block((0, 0, floor), (0, 0, bumper), (half * 0.97, wide * 0.97), (half, wide)),
        block((0, 0, bumper), (0, 0, waist), (half, wide), (half - fall, wide * choose.between(0.88, 0.97))),
    ]
    if choose.chance(0.15):
        return solids + _open(choose, half, wide, waist)
    kind = choose.below(3)
    start, end, tall = ((-0.55, 0.4, 1.0), (-0.92, 0.35, 1.0), (-0.92, 0.65, 1.35))[kind]
    back, front = half * (start + choose.between(-0.06, 0.08)), half * (end + choose.between(-0.1, 0.1))
    rake, tail = (
        choose.between(0.08, 0.3),
        choose.between(0.02, 0.08) if kind > 0 else choose.between(0.06, 0.28),
    )
    roof_back, roof_front = back + tail, max(front - rake, back + tail + 0.2)
    cabin = block(
        ((back + front) / 2, 0, waist - 0.01),
        ((roof_back + roof_front) / 2, 0, waist + tall * choose.between(0.18, 0.26)),
        ((front - back) / 2, wide * 0.92),
        ((roof_front - roof_back) / 2, wide * choose.between(0.7, 0.85)),
    )
    return [*solids, cabin]


def _open(choose: Choices, half: float, wide: float, waist: float) -> list[Solid]:
    """A windscreen and two seats."""
    x, tall = choose.between(0.1, 0.25) * half, choose.between(0.12, 0.18)
    screen = block((x, 0, waist - 0.03), (x - 0.1, 0, waist + tall), (0.02, wide * 0.8))
    return [screen, *both(ball((x - 0.35, wide * 0.4, waist), (0.08, wide * 0.3, tall)))]


def _fenders(axle: float, wide: float, radius: float) -> list[Solid]:
    """Rounded covers over the wheels."""
    return [
        fender
        for x in (axle, -axle)
        for fender in both(ball((x, wide * 0.86, radius * 1.25), (radius * 1.6, wide * 0.16, radius * 1.05)))
    ]
