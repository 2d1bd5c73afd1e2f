"""A convolution along one axis with any stride, as matrices: products are few, and so is rounding.

A filter g with k taps and stride s gives y[i] = sum over t of g[t] x[s i + t]. With t = s j + p the sum falls
into s phases,

    y[i] = sum over p of (sum over j of g_p[j] x_p[i + j]),      g_p[j] = g[s j + p],  x_p[i] = x[s i + p],

each a convolution of stride 1 with about k / s taps over every s-th input. Each is done by Toom and Cook's
algorithm; their products are computed side by side, and because the last step is a sum anyway, one matrix
takes the products of all phases to the outputs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.fast_convolution.toom_cook import ShortConvolution, short_convolution

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class StridedConvolution:
    """y = result @ ((filter @ g) * (inputs @ x[positions])) for m outputs, in n products.

    Attributes:
        filter: [n, k].
        positions: which inputs of the window are needed, in the order of `inputs`' columns, int64 [n].
        inputs: [n, n]; a square block on the diagonal for each phase.
        result: [m, n].
        stride: inputs between two outputs.
    """

    filter: Matrix
    positions: NDArray[np.int64]
    inputs: Matrix
    result: Matrix
    stride: int

    @property
    def outputs(self) -> int:
        """Of a tile: m."""
        return len(self.result)

    @property
    def size(self) -> int:
        """Multiplications: n."""
        return len(self.filter)

    @property
    def constant(self) -> Matrix:
        """Products [n] that give 1 in every output: what a bias is multiplied with, to be added to them."""
        exact = np.flatnonzero((self.result == 1).all(axis=0))  # the point 1 gives each output 1
        if len(exact):
            return np.eye(self.size)[exact[0]]
        return np.linalg.pinv(self.result) @ np.ones(self.outputs)

    def windows(self, tiles: int) -> NDArray[np.int64]:
        """The inputs of so many neighboring tiles of m outputs each, [n, tiles]."""
        return self.positions[:, None] + self.outputs * self.stride * np.arange(tiles)


def strided_convolution(outputs: int, kernel: int, stride: int) -> StridedConvolution:
    """The algorithm for m outputs of a filter with k taps.

    Raises:
        ValueError: it would need more points than there are, or an argument is below 1.
    """
    if kernel < 1 or stride < 1:
        raise ValueError(f"kernel and stride must be at least 1, got {kernel} and {stride}")
    phases = [short_convolution(outputs, len(range(p, kernel, stride))) for p in range(min(stride, kernel))]
    return StridedConvolution(
        filter=np.concatenate([_spread(phase.filter, p, kernel, stride) for p, phase in enumerate(phases)]),
        positions=np.concatenate([p + stride * np.arange(phase.size) for p, phase in enumerate(phases)]),
        inputs=_on_the_diagonal(phases),
        result=np.concatenate([phase.result for phase in phases], axis=1),
        stride=stride,
    )


def _spread(filters: Matrix, phase: int, kernel: int, stride: int) -> Matrix:
    """The matrix for one phase's taps, [n_p, taps], as one for all taps, [n_p, k]."""
    spread = np.zeros((len(filters), kernel))
    spread[:, phase::stride] = filters
    return spread


def _on_the_diagonal(phases: list[ShortConvolution]) -> Matrix:
    size = sum(phase.size for phase in phases)
    matrix, row = np.zeros((size, size)), 0
    for phase in phases:
        matrix[row : row + phase.size, row : row + phase.size] = phase.inputs
        row += phase.size
    return matrix
