"""A convolution with few multiplications, forward and backward, for training on a CPU.

Along one axis, m outputs of a filter g are made with few products as

    y = result ((filter g) * (inputs x)),        * elementwise,

with the matrices of export/fast_convolution/strided.py. More than m outputs are computed tile by tile, and
two axes along rows and along columns. For the 6 x 6 outputs of 9 x 9 taps and stride 2 in tiles of 3 there
are 13 products in a tile along each axis, and a pair of channels takes 4 * 13 * 13 = 676 multiplications
instead of 6 * 6 * 81 = 2916.

Between channels, one matrix product remains for every pair of points. Its gradients are matrix products as
well, and the three transforms are linear, so the backward pass applies the transposed transforms: dx =
inputs' (W' (result' dy)), dg = filter' ((result' dy) * (inputs x)).

Images and channels lie last in memory, [H, W, B, C]: then every transform is a small matrix times a wide
one.
"""

# B images, C channels in, O channels out, H rows, W columns; along rows S tiles, P points and M outputs in a
# tile; along columns T tiles, Q points and N outputs in a tile.

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from export.fast_convolution.strided import strided_convolution


@dataclass(frozen=True)
class Axis:
    """The algorithm along one axis, for one tile.

    Attributes:
        filter: [P, k], what the taps are multiplied with.
        inputs: [P, window], what the inputs of a tile are multiplied with.
        result: [M, P], what the products are multiplied with.
        step: inputs from the beginning of a tile to that of the next one.
        tiles: how many there are.
    """

    filter: Tensor
    inputs: Tensor
    result: Tensor
    step: int
    tiles: int

    @property
    def points(self) -> int:
        """P: products of a tile."""
        return len(self.inputs)

    @property
    def tile(self) -> int:
        """M: outputs of a tile."""
        return len(self.result)

    @property
    def length(self) -> int:
        """Inputs that all tiles together read; a window is longer than the step."""
        return self.step * (self.tiles - 1) + self.inputs.shape[1]


@lru_cache
def axis_algorithm(kernel: int, stride: int, outputs: int, tile: int, dtype: torch.dtype) -> Axis:
    """The algorithm for so many outputs, `tile` at a time; what the last tile has too much will be cut."""
    algorithm = strided_convolution(tile, kernel, stride)
    inputs = np.zeros((algorithm.size, (tile - 1) * stride + kernel))
    inputs[:, algorithm.positions] = algorithm.inputs  # a phase reads every s-th input of the window
    return Axis(
        filter=torch.from_numpy(algorithm.filter).to(dtype),
        inputs=torch.from_numpy(inputs).to(dtype),
        result=torch.from_numpy(algorithm.result).to(dtype),
        step=stride * tile,
        tiles=-(-outputs // tile),
    )


def short_conv2d(x: Tensor, weight: Tensor, stride: int, tile: int) -> Tensor:
    """What `F.conv2d(x, weight, stride=stride)` gives, up to rounding, and its gradients, but not theirs.

    Args:
        x: [B, C, H, W], in any order in memory; in that of [H, W, B, C] it need not be copied.
        weight: [O, C, kernel rows, kernel columns].
        stride: along both axes.
        tile: outputs made at once, along both axes. More take fewer multiplications and lose more digits.

    Returns:
        [B, O, rows, columns], in memory [rows, columns, B, O].
    """
    y: Tensor = _ShortConvolution.apply(x, weight, stride, tile)
    return y


class _ShortConvolution(torch.autograd.Function):
    """Saves what a direct convolution would; what it makes of that is made again on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, tile: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        kernel = weight.shape[2:]
        size = [(length - taps) // stride + 1 for length, taps in zip(x.shape[2:], kernel, strict=True)]
        ctx.axes = rows, columns = [
            axis_algorithm(taps, stride, outputs, tile, x.dtype)
            for taps, outputs in zip(kernel, size, strict=True)
        ]
        maps = _spatial_first(x, rows, columns)
        weights = _weights_at_points(weight, rows, columns)
        work = _Workspace(maps, len(weight), rows, columns)
        _to_points(rows.inputs, maps, rows.step, work.rows_in)
        for p in range(rows.points):
            for s in range(rows.tiles):
                _to_points(columns.inputs, work.rows_in[p, s], columns.step, work.features[:, s])
            torch.bmm(work.features.flatten(1, 3), weights[p].mT, out=work.products.flatten(1, 3))
            for s in range(rows.tiles):
                _from_points(columns.result, work.products[:, s], columns.tile, work.rows_out[p, s].zero_())
        y = maps.new_zeros(rows.tiles * rows.tile, *work.rows_out.shape[2:])
        _from_points(rows.result, work.rows_out, rows.tile, y)
        return y[: size[0], : size[1]].permute(2, 3, 0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        rows, columns = ctx.axes
        maps = _spatial_first(x, rows, columns)
        weights = _weights_at_points(weight, rows, columns)
        work = _Workspace(maps, len(weight), rows, columns)
        dfeatures = torch.empty_like(work.features)
        _to_points(rows.inputs, maps, rows.step, work.rows_in)
        _to_points(rows.result.mT, _tiled(dy, rows, columns), rows.tile, work.rows_out)
        for p in range(rows.points):
            for s in range(rows.tiles):
                _to_points(columns.inputs, work.rows_in[p, s], columns.step, work.features[:, s])
                _to_points(columns.result.mT, work.rows_out[p, s], columns.tile, work.products[:, s])
            features, dproducts = work.features.flatten(1, 3), work.products.flatten(1, 3)
            torch.bmm(dproducts, weights[p], out=dfeatures.flatten(1, 3))
            # Nobody needs this point's weights and rows any more: their gradients take their place.
            torch.bmm(dproducts.mT, features, out=weights[p])
            for s in range(rows.tiles):
                _from_points(columns.inputs.mT, dfeatures[:, s], columns.step, work.rows_in[p, s].zero_())
        dmaps = torch.zeros_like(maps)
        _from_points(rows.inputs.mT, work.rows_in, rows.step, dmaps)
        dx = dmaps[: x.shape[2], : x.shape[3]].permute(2, 3, 0, 1)
        return dx, _weights_from_points(weights, rows, columns).view_as(weight), None, None


class _Workspace:
    """What lies between the transforms; of the columns one row's point at a time, which caches can hold."""

    def __init__(self, maps: Tensor, out_channels: int, rows: Axis, columns: Axis):
        _, width, images, channels = maps.shape
        outputs = columns.tiles * columns.tile
        self.rows_in = maps.new_empty(rows.points, rows.tiles, width, images, channels)
        self.features = maps.new_empty(columns.points, rows.tiles, columns.tiles, images, channels)
        self.products = maps.new_empty(columns.points, rows.tiles, columns.tiles, images, out_channels)
        self.rows_out = maps.new_empty(rows.points, rows.tiles, outputs, images, out_channels)


def _spatial_first(x: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """[B, C, H, W] to [H, W, B, C], with zeros added where the last tiles read beyond the end."""
    maps = x.permute(2, 3, 0, 1)
    down, right = max(rows.length - len(maps), 0), max(columns.length - maps.shape[1], 0)
    return F.pad(maps, (0, 0, 0, 0, 0, right, 0, down)).contiguous() if down or right else maps.contiguous()


def _tiled(dy: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """[B, O, rows, columns] to [S * M, T * N, B, O]; outputs that were cut have no gradient."""
    maps = dy.permute(2, 3, 0, 1)
    down, right = rows.tiles * rows.tile - len(maps), columns.tiles * columns.tile - maps.shape[1]
    return F.pad(maps, (0, 0, 0, 0, 0, right, 0, down)).contiguous()


def _to_points(matrix: Tensor, x: Tensor, step: int, out: Tensor) -> None:
    """Transform each tile of x, [length, ...], into out, [points, tiles, ...]."""
    points, window = matrix.shape
    for t in range(out.shape[1]):
        tile = x[step * t : step * t + window].view(window, -1)
        torch.mm(matrix, tile, out=out[:, t].view(points, -1))


def _from_points(matrix: Tensor, values: Tensor, step: int, out: Tensor) -> None:
    """Add to each tile of out, [length, ...], what values, [points, tiles, ...], transform into."""
    window, points = matrix.shape
    for t in range(values.shape[1]):
        tile = out[step * t : step * t + window].view(window, -1)
        tile.addmm_(matrix, values[:, t].view(points, -1))


def _weights_at_points(weight: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """[O, C, kernel rows, kernel columns] to [P, Q, O, C]."""
    both = torch.kron(rows.filter, columns.filter)  # [P * Q, taps]
    at_points = both @ weight.reshape(-1, both.shape[1]).mT
    return at_points.view(rows.points, columns.points, *weight.shape[:2])


def _weights_from_points(dweights: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """The transpose of that, for gradients: [P, Q, O, C] to [O * C, taps]."""
    both = torch.kron(rows.filter, columns.filter)
    return dweights.view(len(both), -1).mT @ both
