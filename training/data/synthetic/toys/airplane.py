"""Airplanes, standing on their gear or lying on their bellies."""

from training.data.synthetic.toys.parts import Choices, ball, block, both, polar, rod
from training.data.synthetic.toys.solids import Solid


def airplane(choose: Choices) -> list[Solid]:
    """Fuselage, wings, tail, engines and gear, from a straight-winged propeller craft to a swept jet."""
    length, thick = choose.between(0.75, 1.0), choose.between(0.08, 0.14)
    height = thick + choose.between(0.04, 0.2)
    nose, waist = choose.between(0.5, 0.9) * length, choose.between(0.2, 0.5) * length
    tip = choose.between(0.2, 0.5)
    solids: list[Solid] = [
        rod((waist, 0, height), (-waist, 0, height), thick, thick),
        ball((waist, 0, height), (max(nose - waist, thick), thick, thick)),
        rod((-waist, 0, height), (-length, 0, height + thick * 0.3), thick, thick * tip),
        ball((waist * 0.8, 0, height + thick * 0.75), (choose.between(0.12, 0.25), thick * 0.6, thick * 0.7)),
    ]
    solids += _wings(choose, length, thick, height)
    solids += _tail(choose, length, height + thick * 0.3)
    return (
        solids + _gear(choose, waist, height, thick) + _nose(choose, max(nose, waist + thick), height, thick)
    )


def _wings(choose: Choices, length: float, thick: float, height: float) -> list[Solid]:
    """One pair, or two above each other; with engines below them or none."""
    span, chord = choose.between(0.65, 1.05), choose.between(0.13, 0.26)
    sweep, taper = choose.between(-0.05, 0.6) * span, choose.between(0.3, 1.0)
    rise, where = choose.between(-0.02, 0.1) * span, choose.between(-0.15, 0.2) * length
    low = height + choose.between(-0.7, 0.7) * thick
    x = where + 0.3 * sweep
    wing = block(
        (x, 0, low), (x - sweep, span, low + rise), (chord, 0.025), (chord * taper, 0.018), plane="xz"
    )
    solids = both(wing)
    if choose.chance(0.2):
        above = height + thick + choose.between(0.12, 0.2)
        upper = block((x, 0, above), (x - sweep * 0.3, span * 0.95, above), (chord, 0.02), plane="xz")
        strut = rod((x, span * 0.6, low), (x, span * 0.6, above), 0.02, 0.02)
        return solids + both(upper) + both(strut)
    for _ in range(choose.below(3)):
        place = choose.between(0.3, 0.75)
        ahead, down = x - sweep * place + chord * 0.6, low + rise * place - 0.05
        size = choose.between(0.04, 0.065)
        solids += both(rod((ahead, span * place, down), (ahead - 0.25, span * place, down), size, size * 0.8))
    return solids


def _tail(choose: Choices, length: float, height: float) -> list[Solid]:
    """A fin and a tailplane, low or on top of the fin."""
    chord, tall, span = choose.between(0.08, 0.15), choose.between(0.2, 0.38), choose.between(0.22, 0.42)
    sweep = choose.between(0.0, 0.2)
    x = -length + chord
    high = tall * 0.95 if choose.chance(0.3) else choose.between(0.0, 0.06)
    back = sweep * high / tall
    fin = block((x, 0, height), (x - sweep, 0, height + tall), (chord, 0.02), (chord * 0.6, 0.015))
    plane = block(
        (x - back, 0, height + high),
        (x - back - sweep * 0.8, span, height + high),
        (chord * 0.9, 0.018),
        (chord * 0.6, 0.014),
        plane="xz",
    )
    return [fin, *both(plane)]


def _gear(choose: Choices, waist: float, height: float, thick: float) -> list[Solid]:
    """Legs with wheels, where there is room below the fuselage."""
    if height < thick + 0.09:
        return []
    radius, aside = choose.between(0.035, 0.05), choose.between(0.1, 0.2)
    wheel = rod((0, aside, radius), (0, aside + 0.04, radius), radius, radius)
    leg = rod((0, aside, radius), (0, aside * 0.6, height), 0.02, 0.025)
    front = rod((waist, -0.02, radius), (waist, 0.02, radius), radius, radius)
    return [*both(wheel), *both(leg), front, rod((waist, 0, radius), (waist, 0, height), 0.02, 0.02)]


def _nose(choose: Choices, x: float, height: float, thick: float) -> list[Solid]:
    """A propeller for some."""
    if not choose.chance(0.4):
        return []
    long = choose.between(0.18, 0.28)
    across, up = polar(long, choose.between(0, 90))
    return [
        rod((x, -across, height - up), (x, across, height + up), 0.025, 0.025),
        rod((x - 0.05, 0, height), (x + 0.06, 0, height), 0.35 * thick, 0.1 * thick),
    ]
