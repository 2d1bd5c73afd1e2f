"""A camera's rays, in rectangles, so that a solid is asked only for those that may meet it.

Everything is in the frame of the toy: x ahead, y to its left, z up, the table at z = 0. Only additions,
multiplications, divisions and square roots are done here and in the solids, one array at a time: these are
the same to the last bit on every machine, which matrix products and powers are not.
"""

# H and W height and width of a rectangle of rays

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]  # [3]
Grid = NDArray[np.float32]  # [H, W]


def dot(a: Vector, b: Vector) -> float:
    """The scalar product of two vectors."""
    return float(a[0] * b[0] + a[1] * b[1] + a[2] * b[2])


def cross(a: Vector, b: Vector) -> Vector:
    """The vector product of two vectors; NumPy's own takes ten times as long for so few numbers."""
    (ax, ay, az), (bx, by, bz) = a, b
    return np.array([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx])


def unit(a: Vector) -> Vector:
    """The vector at length 1."""
    return a / np.sqrt(dot(a, a))


@dataclass(frozen=True)
class Rays:
    """Rays from one eye through a rectangle: eye + (reach + depth) * (forward + x * right + y * down).

    The toy is about at `reach`, so that depths are small and keep their digits in float32.

    Attributes:
        eye: where the rays start, [3].
        forward: where the camera looks, of length 1, [3].
        right: from the picture's middle to its right edge, a distance of 1 from the eye, [3].
        down: likewise to its lower edge, [3].
        reach: the distance from the eye that is depth 0.
        x: of each column, float32 [W], -1 to 1 over the whole picture.
        y: of each row, float32 [H].
    """

    eye: Vector
    forward: Vector
    right: Vector
    down: Vector
    reach: float
    x: NDArray[np.float32]
    y: NDArray[np.float32]

    def along(self, axis: Vector) -> Grid:
        """How far each ray goes along an axis per unit of depth."""
        columns = np.float32(dot(axis, self.forward)) + self.x * np.float32(dot(axis, self.right))
        return columns + (self.y * np.float32(dot(axis, self.down)))[:, None]

    def start(self, axis: Vector, along: Grid, origin: Vector) -> Grid:
        """Where on an axis through the origin each ray is at depth 0; `along` is `self.along(axis)`."""
        return along * np.float32(self.reach) + np.float32(dot(axis, self.eye - origin))

    def part(self, rows: slice, columns: slice) -> "Rays":
        """The rays of a smaller rectangle."""
        return Rays(self.eye, self.forward, self.right, self.down, self.reach, self.x[columns], self.y[rows])


def look(eye: Vector, target: Vector, half_field: float, size: int) -> Rays:
    """The rays of a camera that holds its upper edge up.

    Args:
        eye: where it stands, [3].
        target: what is in the middle of its picture, [3]; not straight below it.
        half_field: half the width that it sees at the target's distance.
        size: rays per row and per column, each through the middle of its pixel.
    """
    distance = np.sqrt(dot(target - eye, target - eye))
    forward = (target - eye) / distance
    right = unit(cross(forward, np.array([0.0, 0.0, 1.0])))
    middles = ((np.arange(size) + 0.5) * 2 / size - 1).astype(np.float32)
    scale = half_field / distance
    return Rays(eye, forward, right * scale, cross(forward, right) * scale, distance, middles, middles)
