"""Where in the image the capsules below the classes look, from the architecture that a manifest states."""

from dataclasses import dataclass

from export.contract.architecture import (
    CAPSULE_KERNEL,
    CAPSULE_STRIDES,
    CONV_KERNEL,
    CONV_STRIDE,
    capsnet_architecture,
)
from export.contract.manifest import BundleError, Manifest


@dataclass(frozen=True)
class Grid:
    """Capsules at size x size positions, and the part of the image that each of them sees.

    Attributes:
        size: positions along both axes.
        step: from one receptive field to the next, pixels.
        field: side of a receptive field, pixels.
    """

    size: int
    step: int = 1
    field: int = 1

    @property
    def centers(self) -> list[float]:
        """Of the receptive fields along either axis, in pixels from the image's edge."""
        return [self.field / 2 + self.step * place for place in range(self.size)]

    def convolved(self, kernel: int, stride: int) -> "Grid":
        """The grid that a convolution without padding makes of this one."""
        size = (self.size - kernel) // stride + 1
        return Grid(size, self.step * stride, self.field + self.step * (kernel - 1))


def capsule_grids(manifest: Manifest) -> dict[str, Grid]:
    """The grids of the capsules that are routed, by their layer; the last one votes for the classes.

    Raises:
        BundleError: the manifest does not state the architecture.
    """
    size = manifest.preprocessing.height
    if manifest.architecture == "matrix-capsnet":
        return {f"conv_caps.{place}": grid for place, grid in enumerate(matrix_capsule_grids(size)[1:])}
    architecture = capsnet_architecture(manifest)
    if architecture is None:
        raise BundleError("manifest: parameters do not state the network's architecture")
    kernels = [*(layer.kernel for layer in architecture.stem), architecture.kernel, architecture.kernel]
    grid = Grid(size)
    for kernel, stride in zip(kernels, architecture.strides.values(), strict=True):
        grid = grid.convolved(kernel, stride)
    return {"primary_caps": grid}


def matrix_capsule_grids(image_size: int) -> list[Grid]:
    """The grids of the primary capsules and of each convolutional capsule layer of matrix capsules."""
    grids = [Grid(image_size).convolved(CONV_KERNEL, CONV_STRIDE)]
    for stride in CAPSULE_STRIDES:
        grids.append(grids[-1].convolved(CAPSULE_KERNEL, stride))
    return grids
