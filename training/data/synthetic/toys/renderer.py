"""A small ray caster: matte solids on a table under a few lamps, seen by a camera.

The nearest meeting point decides each ray (there is no other light path than lamp, surface, camera). Lamps
cast shadows by shadow maps: each has a picture of the depths that it sees, and what lies deeper is in the
dark. A pixel is the mean of several rays, each of which looks into another cell of the shadow map, so that
edges of solids are smooth and those of shadows soft.
"""

# S rays per row and per column, P pixels per row and per column, L lamps

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.synthetic.toys.rays import Grid, Rays, Vector, dot, look
from training.data.synthetic.toys.solids import Solid

RAYS_PER_SIDE = 3  # of a pixel
TABLE_REFLECTANCE = 0.75
TOY_REFLECTANCE = 0.55  # the same paint on all
AMBIENT = (0.10, 0.06)  # light from everywhere, and what a surface that faces up gets more of it
SHADOW_SIZE = 224  # rays per row and per column of a shadow map
SHADOW_OFFSET = 0.035  # above the toy's surface
LAMP_SPREAD = 2  # cells of the shadow map between those that the rays of a pixel look into


@dataclass(frozen=True)
class Lamp:
    """A lamp and what it sees.

    Attributes:
        rays: from the lamp around the toy.
        depths: the shadow map: where they meet it first, float32 [S, S]; infinite where they meet nothing.
        power: the light it gives at distance 1.
    """

    rays: Rays
    depths: Grid
    power: float


@dataclass(frozen=True)
class Surface:
    """What the rays of a camera meet.

    Attributes:
        points: where, three grids float32 [S, S].
        above: a little above the surface, from where shadows are judged: a toy would shade itself otherwise.
        normals: of length 1, float32 [3, S, S].
        on_toy: whether it is the toy and not the table, bool [S, S].
    """

    points: list[Grid]
    above: list[Grid]
    normals: NDArray[np.float32]
    on_toy: NDArray[np.bool_]


def hang_lamp(solids: Sequence[Solid], place: Vector, target: Vector, radius: float, power: float) -> Lamp:
    """A lamp that shines at a toy.

    Args:
        solids: what the toy is made of.
        place: of the lamp, [3].
        target: where it points, [3].
        radius: of a ball around it that holds the toy; nothing outside casts a shadow.
        power: the light it gives at distance 1.
    """
    rays = look(place, target, radius, SHADOW_SIZE)
    return Lamp(rays, nearest(solids, rays)[0], power)


def nearest(solids: Sequence[Solid], rays: Rays) -> tuple[Grid, NDArray[np.int8]]:
    """The depth at which each ray meets a solid first, and which; infinite and -1 where it meets none."""
    shape = len(rays.y), len(rays.x)
    depths, which = np.full(shape, np.inf, np.float32), np.full(shape, -1, np.int8)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for index, solid in enumerate(solids):
            part = rectangle(solid, rays)
            found = solid.met(rays.part(*part))
            nearer = found < depths[part]
            np.copyto(depths[part], found, where=nearer)
            np.copyto(which[part], np.int8(index), where=nearer)
    return depths, which


def rectangle(solid: Solid, rays: Rays) -> tuple[slice, slice]:
    """Rows and columns of the rays that may meet a solid."""
    x, y, z = (solid.corners - rays.eye).T

    def along(axis: Vector) -> NDArray[np.float64]:
        return x * axis[0] + y * axis[1] + z * axis[2]

    depth = along(rays.forward)
    ranges = []
    for axis, middles in ((rays.down, rays.y), (rays.right, rays.x)):
        steps = along(axis) / depth / dot(axis, axis)
        first, last = np.searchsorted(middles, (steps.min(), steps.max()))
        ranges.append(slice(int(first), int(last)))
    return ranges[0], ranges[1]


def surface(solids: Sequence[Solid], rays: Rays) -> Surface:
    """What each ray meets first: the toy or the table, which no ray may miss."""
    depths, which = nearest(solids, rays)
    up = np.array([0.0, 0.0, 1.0])
    falling = rays.along(up)
    on_toy = which >= 0
    depths = np.where(on_toy, depths, -rays.start(up, falling, np.zeros(3)) / falling)
    points = []
    for axis in np.eye(3):
        along = rays.along(axis)
        points.append(rays.start(axis, along, np.zeros(3)) + depths * along)
    normals = np.zeros((3, *depths.shape), np.float32)
    normals[2] = 1
    for index, solid in enumerate(solids):
        part = rectangle(solid, rays)
        seen = which[part] == index
        normals[:, *part][:, seen] = solid.normals(np.stack([grid[part][seen] for grid in points]))
    offset = np.where(on_toy, np.float32(SHADOW_OFFSET), np.float32(0))  # no shadow map has the table in it
    above = [grid + normal * offset for grid, normal in zip(points, normals, strict=True)]
    return Surface(points, above, normals, on_toy)


def shade(met: Surface, lamps: Sequence[Lamp]) -> NDArray[np.float32]:
    """The light that reaches the camera from a surface, by where it came from.

    Returns:
        float32 [1 + L, P, P]: of the light from everywhere, and of each lamp.
    """
    reflectance = np.where(met.on_toy, np.float32(TOY_REFLECTANCE), np.float32(TABLE_REFLECTANCE))
    everywhere = np.float32(AMBIENT[0]) + np.float32(AMBIENT[1]) * met.normals[2]
    return np.stack(
        [pixels(light * reflectance) for light in (everywhere, *(_lit(met, lamp) for lamp in lamps))]
    )


def pixels(samples: Grid) -> Grid:
    """Each pixel the mean of its rays."""
    n = RAYS_PER_SIDE
    total = np.zeros((samples.shape[0] // n, samples.shape[1] // n), np.float32)
    for row in range(n):
        for column in range(n):
            total += samples[row::n, column::n]
    total /= n * n
    return total


def _lit(met: Surface, lamp: Lamp) -> Grid:
    """The light of a lamp on each point: Lambert's cosine, the inverse square, and shadow."""
    place = lamp.rays.eye.astype(np.float32)
    x, y, z = (eye - grid for eye, grid in zip(place, met.points, strict=True))
    square = x * x + y * y + z * z
    facing = met.normals[0] * x + met.normals[1] * y + met.normals[2] * z
    light = np.maximum(facing, 0) * np.float32(lamp.power) / (square * np.sqrt(square))
    light[_in_shadow(met, lamp)] = 0
    return light


def _in_shadow(met: Surface, lamp: Lamp) -> NDArray[np.bool_]:
    """Whether the lamp sees something nearer in the direction of each point, bool [S, S]."""
    x, y, z = met.above

    def along(axis: Vector) -> Grid:
        a, b, c = axis.astype(np.float32)
        return x * a + y * b + z * c - np.float32(dot(axis, lamp.rays.eye))

    depth = along(lamp.rays.forward)
    spread = (np.arange(RAYS_PER_SIDE) - (RAYS_PER_SIDE - 1) / 2) * LAMP_SPREAD
    shift = np.tile(spread.astype(np.float32), len(depth) // RAYS_PER_SIDE)
    size = len(lamp.depths)
    index = []
    for axis, own in ((lamp.rays.down, shift[:, None]), (lamp.rays.right, shift[None])):
        step = along(axis / dot(axis, axis)) / depth  # -1 to 1 over the lamp's picture
        ray = (step + 1) * np.float32(size / 2) + own
        index.append(np.clip(ray, 0, size - 1).astype(np.int32))  # its border sees nothing
    return lamp.depths.ravel()[index[0] * size + index[1]] + np.float32(lamp.rays.reach) < depth
