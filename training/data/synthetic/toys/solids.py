"""Solids with closed-form meeting points and exact normals: ellipsoids, frustums of cones, prismoids."""

# H and W height and width of a rectangle of rays, K points

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from training.data.synthetic.toys.rays import Grid, Rays, Vector, cross, dot

Points = NDArray[np.float32]  # [3, K]
SIGNS = np.array([(x, y) for x in (-1, 1) for y in (-1, 1)])


@dataclass(frozen=True)
class Motion:
    """A toy turned about the vertical, made larger and moved: scale * turned + shift."""

    cosine: float
    sine: float
    scale: float
    shift: Vector

    def of_vector(self, a: Vector) -> Vector:
        """A direction or an extent."""
        turned = (self.cosine * a[0] - self.sine * a[1], self.sine * a[0] + self.cosine * a[1], a[2])
        return np.array(turned) * self.scale

    def of_point(self, a: Vector) -> Vector:
        """A place."""
        return self.of_vector(a) + self.shift


class Solid(Protocol):
    """Something closed and convex that rays can meet."""

    @property
    def corners(self) -> Vector:
        """Points whose convex hull holds the solid, [P, 3]."""

    def moved(self, motion: Motion) -> "Solid":
        """The same solid elsewhere."""

    def met(self, rays: Rays) -> Grid:
        """The depth at which each ray enters, float32 [H, W]; NaN or infinite where it misses."""

    def normals(self, points: Points) -> Points:
        """Outward, of length 1, at points of the surface, float32 [3, K]."""


@dataclass(frozen=True)
class Ellipsoid:
    """All points center + a * u + b * v + c * w with a, b, c in the unit ball."""

    center: Vector
    u: Vector
    v: Vector
    w: Vector

    @cached_property
    def corners(self) -> Vector:
        """Of the box around it."""
        middle = self.center + SIGNS[:, :1] * self.u + SIGNS[:, 1:] * self.v
        return np.concatenate([middle - self.w, middle + self.w])

    def moved(self, motion: Motion) -> "Ellipsoid":
        """The same solid elsewhere."""
        return Ellipsoid(
            motion.of_point(self.center), *(motion.of_vector(axis) for axis in (self.u, self.v, self.w))
        )

    def met(self, rays: Rays) -> Grid:
        """The nearer root of |start + depth * direction|^2 = 1 in the frame where it is the unit ball."""
        direction, start = _local(rays, self._rows, self.center)
        a, b = _dot(direction, direction), _dot(direction, start)
        return (-b - np.sqrt(b * b - a * (_dot(start, start) - 1))) / a

    def normals(self, points: Points) -> Points:
        """The gradient of |local|^2."""
        return _unit(_back(self._rows, _places(self._rows, points, self.center)))

    @cached_property
    def _rows(self) -> Vector:
        """Take a point to the frame where the ellipsoid is the unit ball, [3, 3]."""
        return _inverse(self.u, self.v, self.w)


@dataclass(frozen=True)
class Frustum:
    """A straight or oblique cone cut at both ends; its cross-sections are ellipses.

    Attributes:
        start: center of the first end, [3].
        axis: from there to the center of the other end, [3].
        u: one half axis of the first end, [3].
        v: the other, [3].
        ratio: size of the other end compared with the first; 1 makes a cylinder, 0 a cone.
    """

    start: Vector
    axis: Vector
    u: Vector
    v: Vector
    ratio: float

    @cached_property
    def corners(self) -> Vector:
        """Of the box, narrower at one end, around it."""
        across = SIGNS[:, :1] * self.u + SIGNS[:, 1:] * self.v
        return np.concatenate([self.start + across, self.start + self.axis + across * self.ratio])

    def moved(self, motion: Motion) -> "Frustum":
        """The same solid elsewhere."""
        axis, u, v = (motion.of_vector(extent) for extent in (self.axis, self.u, self.v))
        return Frustum(motion.of_point(self.start), axis, u, v, self.ratio)

    def met(self, rays: Rays) -> Grid:
        """The nearest of: side, first end, other end. In its frame the radius is 1 + narrowing * height."""
        (dx, dy, dz), (x, y, z) = _local(rays, self._rows, self.start)
        narrowing = np.float32(self.ratio - 1)
        radius, growth = 1 + narrowing * z, narrowing * dz
        a = dx * dx + dy * dy - growth * growth
        b = dx * x + dy * y - growth * radius
        root = np.sqrt(b * b - a * (x * x + y * y - radius * radius))
        nearest = np.full_like(z, np.inf)
        for depth in ((-b - root) / a, (-b + root) / a):
            height = z + depth * dz
            np.copyto(nearest, depth, where=(height >= 0) & (height <= 1) & (depth < nearest))
        for height, limit in ((0.0, 1.0), (1.0, self.ratio)):
            depth = (np.float32(height) - z) / dz
            inside = np.square(x + depth * dx) + np.square(y + depth * dy) <= np.float32(limit * limit)
            np.copyto(nearest, depth, where=inside & (depth < nearest))
        return nearest

    def normals(self, points: Points) -> Points:
        """Of the side or of an end, whichever the point is closest to."""
        x, y, z = _places(self._rows, points, self.start)
        narrowing = np.float32(self.ratio - 1)
        radius = 1 + narrowing * z
        from_side = np.abs(np.sqrt(x * x + y * y) - radius)
        from_end = np.minimum(np.abs(z), np.abs(z - 1))
        local = np.stack([x, y, -narrowing * radius])
        at_end = from_end < from_side
        local[:, at_end] = 0
        local[2, at_end] = np.where(z[at_end] > 0.5, 1, -1)
        return _unit(_back(self._rows, local))

    @cached_property
    def _rows(self) -> Vector:
        """Take a point to the frame of a round cone of height 1 whose first end has radius 1, [3, 3]."""
        return _inverse(self.u, self.v, self.axis)


@dataclass(frozen=True)
class Prismoid:
    """Two parallel rectangles, not of one size, and all that lies between: blocks, wedges, wings.

    Attributes:
        start: center of the first rectangle, [3].
        end: center of the other one, [3].
        u: half of one side of the first, [3].
        v: half of its other side, [3].
        ratios: what the sides along u and v of the other one are multiplied by.
    """

    start: Vector
    end: Vector
    u: Vector
    v: Vector
    ratios: tuple[float, float]

    @cached_property
    def corners(self) -> Vector:
        """Its own."""
        across, along = SIGNS[:, :1] * self.u, SIGNS[:, 1:] * self.v
        far = across * self.ratios[0] + along * self.ratios[1]
        return np.concatenate([self.start + across + along, self.end + far])

    def moved(self, motion: Motion) -> "Prismoid":
        """The same solid elsewhere."""
        start, end = motion.of_point(self.start), motion.of_point(self.end)
        return Prismoid(start, end, motion.of_vector(self.u), motion.of_vector(self.v), self.ratios)

    def met(self, rays: Rays) -> Grid:
        """The last plane that a ray comes in through, unless it has left through another before."""
        entered = np.full((len(rays.y), len(rays.x)), -np.inf, np.float32)
        left = np.full_like(entered, np.inf)
        for point, normal in self._faces:
            along = rays.along(normal)
            depth = -rays.start(normal, along, point) / along
            np.copyto(entered, depth, where=(along < 0) & (depth > entered))
            np.copyto(left, depth, where=(along > 0) & (depth < left))
        return np.where(entered < left, entered, np.float32(np.inf))

    def normals(self, points: Points) -> Points:
        """Of the face that the point is least below."""
        faces = self._faces
        heights = [
            _places(normal[None] / np.sqrt(dot(normal, normal)), points, point)[0] for point, normal in faces
        ]
        normals = np.stack([normal for _, normal in faces], axis=1).astype(np.float32)  # [3, 6]
        return _unit(normals[:, np.argmax(heights, axis=0)])

    @cached_property
    def _faces(self) -> list[tuple[Vector, Vector]]:
        """A point and the outward normal of each; lengths differ."""
        axis, (along_u, along_v) = self.end - self.start, self.ratios
        up = cross(self.u, self.v)
        up = up if dot(up, axis) > 0 else -up
        faces = [(self.start, -up), (self.end, up)]
        for side, other, ratio in ((self.u, self.v, along_u), (self.v, self.u, along_v)):
            for half in (side, -side):
                normal = cross(other, axis + half * (ratio - 1))
                faces.append((self.start + half, normal if dot(normal, half) > 0 else -normal))
        return faces


def _inverse(u: Vector, v: Vector, w: Vector) -> Vector:
    """Rows that take a * u + b * v + c * w to a, b, c; [3, 3]."""
    rows = np.stack([cross(v, w), cross(w, u), cross(u, v)])
    return rows / dot(rows[0], u)


def _local(rays: Rays, rows: Vector, origin: Vector) -> tuple[list[Grid], list[Grid]]:
    """Directions and starts of the rays in a solid's own frame, three grids each."""
    direction = [rays.along(row) for row in rows]
    return direction, [rays.start(row, along, origin) for row, along in zip(rows, direction, strict=True)]


def _places(rows: Vector, points: Points, origin: Vector) -> list[NDArray[np.float32]]:
    """Points in a solid's own frame, one array [K] per row."""
    x, y, z = points - origin.astype(np.float32)[:, None]
    return [x * a + y * b + z * c for a, b, c in rows.astype(np.float32)]


def _back(rows: Vector, local: list[NDArray[np.float32]] | Points) -> Points:
    """Gradients in a solid's own frame as gradients in the toy's, [3, K]."""
    x, y, z = local
    return np.stack([x * a + y * b + z * c for a, b, c in rows.astype(np.float32).T])


def _dot(a: list[Grid], b: list[Grid]) -> Grid:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _unit(a: Points) -> Points:
    return a / np.sqrt(a[0] * a[0] + a[1] * a[1] + a[2] * a[2])
