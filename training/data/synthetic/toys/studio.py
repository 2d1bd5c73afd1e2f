"""The table, four lamps and two cameras: a toy in, its pictures at every elevation and lighting out."""

# E elevations, L lightings, S rays per row and per column

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.readers.smallnorb import SIZE
from training.data.synthetic.toys.airplane import airplane
from training.data.synthetic.toys.animal import animal
from training.data.synthetic.toys.car import car
from training.data.synthetic.toys.human import human
from training.data.synthetic.toys.parts import Choices
from training.data.synthetic.toys.rays import Rays, Vector, look
from training.data.synthetic.toys.renderer import RAYS_PER_SIDE, Lamp, hang_lamp, nearest, shade, surface
from training.data.synthetic.toys.solids import Motion, Solid
from training.data.synthetic.toys.truck import truck

MAKERS: tuple[Callable[[Choices], list[Solid]], ...] = (animal, human, airplane, truck, car)  # by category
SEED = 1

# Lengths are such that a picture is 2 wide at the toy's distance.
DISTANCE = 7.0
BASELINE_DEGREES = 6.0  # between the cameras, seen from the toy
FRAME_FRACTION = 0.47  # of the picture's side: a toy's size, see `_frame_fractions`
LARGEST_FRACTION = 0.84  # of the picture, either way and from anywhere
SIZES = (0.87, 1.13)  # toys are not all of one size
MISPLACED = 0.08  # a toy stands so far off the middle of the table at most, each way
MISTURNED_DEGREES = 12.0  # and is turned so far out of line
TRIAL_SIZE = 64  # rays per row and per column where a toy's size in pictures is taken
TRIAL_VIEWS = tuple((elevation, azimuth) for elevation in (30, 50, 70) for azimuth in range(0, 360, 60))

# Azimuth from the cameras, degrees; height above the table, degrees; light on the toy.
LAMPS = ((65.0, 40.0, 0.75), (-50.0, 35.0, 0.65), (165.0, 50.0, 0.6), (10.0, 78.0, 0.6))
LAMP_DISTANCE = 6.0
# Which lamps are on, and the mean light that the cameras let in then, of 1. They set themselves for each
# pair, or its brightness would tell how much of it a toy and its shadow cover.
LIGHTINGS = (((0,), 0.2), ((1,), 0.17), ((0, 1), 0.32), ((3,), 0.2), ((2, 3), 0.32), ((0, 1, 2, 3), 0.5))
MISEXPOSED = 0.12  # of the gray level at most, either way: the cameras do not set themselves well
GRAIN = 4.0  # gray levels at most, either way


@dataclass(frozen=True)
class Toy:
    """A toy on the table.

    Attributes:
        solids: what it is made of.
        middle: above the middle of the table, half as high as the toy, [3]; cameras and lamps look there.
        radius: of a ball around the middle that holds it.
    """

    solids: tuple[Solid, ...]
    middle: Vector
    radius: float


def toy(category: int, instance: int) -> Toy:
    """One of the 50 toys, always the same, made to the size of the others and put on the table.

    Args:
        category: 0 to 4, see MAKERS.
        instance: 0 to 9.
    """
    choose = Choices(SEED, category, instance)
    centered = _centered(MAKERS[category](choose))
    fraction, largest = _frame_fractions(centered)
    scale = min(FRAME_FRACTION * choose.between(*SIZES) / fraction, LARGEST_FRACTION / largest)
    turn = math.radians(choose.between(-MISTURNED_DEGREES, MISTURNED_DEGREES))
    aside = np.array([choose.between(-MISPLACED, MISPLACED), choose.between(-MISPLACED, MISPLACED), 0.0])
    solids = [solid.moved(Motion(math.cos(turn), math.sin(turn), scale, aside)) for solid in centered]
    middle = _middle(solids)
    radius = np.sqrt(np.square(_corners(solids) - middle).sum(axis=1)).max()
    return Toy(tuple(solids), middle, float(radius))


def photograph(
    subject: Toy, azimuth_degrees: int, elevations_degrees: Sequence[int], lightings: Sequence[int]
) -> NDArray[np.float32]:
    """Both cameras' pictures of a toy, the turntable at rest.

    Args:
        subject: the toy.
        azimuth_degrees: of the turntable; at 0 the toy faces the cameras. All is computed as the toy sees it,
            whom cameras and lamps go round together.
        elevations_degrees: of the cameras above the table.
        lightings: indices into LIGHTINGS.

    Returns:
        float32 [E, L, 2, 96, 96], left view first, 0-255 and in places beyond.
    """
    lamps = [_lamp(subject, azimuth_degrees, lamp) for lamp in LAMPS]
    pairs = []
    for elevation in elevations_degrees:
        both = cameras(subject.middle, azimuth_degrees, elevation)
        views = [shade(surface(subject.solids, rays), lamps) for rays in both]
        pairs.append([_developed(views, *LIGHTINGS[index]) for index in lightings])
    return np.array(pairs)


def taken(pictures: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
    """What cameras make of pictures: each pair a little too dark or too bright, with grain, in gray levels.

    Args:
        pictures: of `photograph`, float32 [E, L, 2, 96, 96].
        rng: the same state gives the same exposures and the same grain.

    Returns:
        uint8 [E, L, 2, 96, 96].
    """
    exposure = rng.uniform(1 - MISEXPOSED, 1 + MISEXPOSED, (*pictures.shape[:2], 1, 1, 1)).astype(np.float32)
    up, down = (rng.integers(0, 256, pictures.shape, np.uint8) for _ in range(2))
    grain = (up.astype(np.float32) - down) * np.float32(GRAIN / 255)  # small errors are the more frequent
    levels = np.floor(pictures * exposure + grain + np.float32(0.5))
    return np.clip(levels, 0, 255).astype(np.uint8)


def cameras(
    middle: Vector, azimuth_degrees: float, elevation_degrees: float, size: int = SIZE * RAYS_PER_SIDE
) -> list[Rays]:
    """The left and the right camera, side by side, both turned to the toy."""
    half = BASELINE_DEGREES / 2 / math.cos(math.radians(elevation_degrees))  # as seen from above
    return [
        look(
            middle + direction(azimuth_degrees + side * half, elevation_degrees) * DISTANCE, middle, 1.0, size
        )
        for side in (-1, 1)
    ]


def direction(azimuth_degrees: float, elevation_degrees: float) -> Vector:
    """From the toy to what stands there; azimuths go round counter-clockwise, seen from above."""
    azimuth, elevation = math.radians(azimuth_degrees), math.radians(elevation_degrees)
    level = math.cos(elevation)
    return np.array([level * math.cos(azimuth), level * math.sin(azimuth), math.sin(elevation)])


def _developed(
    views: Sequence[NDArray[np.float32]], lamps: Sequence[int], level: float
) -> NDArray[np.float32]:
    """A pair under some of the lamps; a square root is about what cameras make of light."""
    light = np.stack([sum((view[1 + lamp] for lamp in lamps), start=view[0]) for view in views])
    return np.float32(255) * np.sqrt(light * np.float32(level / light.mean(dtype=np.float64)))


def _lamp(subject: Toy, azimuth_degrees: float, lamp: tuple[float, float, float]) -> Lamp:
    """As the toy sees it: in the studio lamps stand still, as the cameras do, and the turntable turns it."""
    azimuth, elevation, light = lamp
    place = subject.middle + direction(azimuth_degrees + azimuth, elevation) * LAMP_DISTANCE
    return hang_lamp(subject.solids, place, subject.middle, subject.radius * 1.1, light * LAMP_DISTANCE**2)


def _centered(solids: Sequence[Solid]) -> list[Solid]:
    """In the middle of the table, the lowest part on it."""
    corners = _corners(solids)
    minimum, maximum = corners.min(axis=0), corners.max(axis=0)
    shift = np.array([-(minimum[0] + maximum[0]) / 2, -(minimum[1] + maximum[1]) / 2, -minimum[2]])
    return [solid.moved(Motion(1.0, 0.0, 1.0, shift)) for solid in solids]


def _frame_fractions(solids: Sequence[Solid]) -> tuple[float, float]:
    """How much of a picture's side a toy takes: its size, mean over views, and its largest height or width.

    The size is the fourth root of height * width * area of the outline: measured by its box alone, an
    airplane would be so much smaller than a truck that the area told them apart.
    """
    middle = _middle(solids)
    sizes, sides = [], []
    for elevation, azimuth in TRIAL_VIEWS:
        left, _ = cameras(middle, azimuth, elevation, TRIAL_SIZE)
        on_toy = nearest(solids, left)[1] >= 0
        height, width = on_toy.any(axis=1).mean(), on_toy.any(axis=0).mean()
        sizes.append(math.sqrt(math.sqrt(height * width * on_toy.mean())))
        sides.append(max(height, width))
    return sum(sizes) / len(sizes), float(max(sides))


def _middle(solids: Sequence[Solid]) -> Vector:
    """Above the middle of the table, half as high as the toy."""
    return np.array([0.0, 0.0, float(_corners(solids)[:, 2].max()) / 2])


def _corners(solids: Sequence[Solid]) -> Vector:
    return np.concatenate([solid.corners for solid in solids])
