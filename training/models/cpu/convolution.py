"""The convolutions of the networks: one result, and several ways to get there."""

# B images, C channels in, O channels out, H rows, W columns

import torch
from torch import Tensor, nn

from export.fast_convolution.toom_cook import LARGEST
from training.models.cpu.cpu_training import trained_on_cpu
from training.models.cpu.short_convolution import axis_algorithm, short_conv2d
from training.models.cpu.unfolded_convolution import unfolded_conv2d_relu

# In tiles of 5 outputs, float32 loses three times as much as in tiles of 4 (9 taps, stride 2).
LARGEST_TILE = 4
# What a multiplication in the maps' transforms takes, in multiplications between channels: they wait for
# memory. Fitted to 9 x 9 and 5 x 5 kernels, 16 to 256 channels, 4 to 64 images; for 3 x 3 it is too hopeful.
TRANSFORM_COST = 4
WORTHWHILE = 0.8  # what the shorter algorithm may cost at most, of the direct one: no rule is exact


class Convolution(nn.Conv2d):
    """A convolution without padding, trained on a CPU by the algorithm that is cheapest there.

    There, maps keep images and channels last in memory, so that one layer's output is the next one's input
    without a copy; what the tensor means is [B, C, H, W] all the same.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, scale: float = 1.0
    ):
        """Build the layer.

        Args:
            in_channels: C.
            out_channels: O.
            kernel_size: height and width of a kernel, pixels.
            stride: along both axes.
            scale: a constant that the sums are multiplied with before the bias is added.
        """
        super().__init__(in_channels, out_channels, kernel_size, stride)
        self.scale = scale

    def scaled_weight(self) -> Tensor:
        """The weights that give the scaled sums, [O, C, kernel rows, kernel columns]."""
        return self.weight if self.scale == 1 else self.weight * self.scale  # they are fewer than the maps

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to maps [B, O, rows, columns]."""
        weight = self.scaled_weight()
        tile = None
        if trained_on_cpu(x):
            tile = worthwhile_tile(x.shape, self.out_channels, self.kernel_size[0], self.stride[0])
        if tile is None:
            return self._conv_forward(x, weight, self.bias)
        assert self.bias is not None  # nn.Conv2d makes one unless told otherwise
        return short_conv2d(x, weight, self.stride[0], tile) + self.bias[:, None, None]


def conv_relu(convolution: Convolution, x: Tensor) -> Tensor:
    """The layer's maps with zeros in place of what is below, [B, O, rows, columns]."""
    patch = convolution.in_channels * convolution.kernel_size[0] ** 2
    if trained_on_cpu(x) and patch <= convolution.out_channels:  # patches take no more room than the result
        assert convolution.bias is not None
        weight = convolution.scaled_weight()
        return unfolded_conv2d_relu(x, weight, convolution.bias, convolution.stride[0])
    return torch.relu(convolution(x))


def worthwhile_tile(shape: tuple[int, ...], out_channels: int, kernel: int, stride: int) -> int | None:
    """The tile with which `short_conv2d` is cheapest, or None where a direct convolution is cheaper.

    Counted are multiplications, forward, of maps [B, C, H, W]; going backward takes twice as many of each.
    """
    images, channels, *size = shape
    outputs = [(length - kernel) // stride + 1 for length in size]
    direct = images * channels * out_channels * outputs[0] * outputs[1] * kernel**2
    taps = -(-kernel // stride)  # of the longest phase
    costs = {
        tile: _cost(images, channels, out_channels, kernel, stride, outputs, tile)
        for tile in range(2, min(LARGEST_TILE, LARGEST - taps + 1) + 1)
    }
    best = min(costs, key=costs.__getitem__, default=None)
    return best if best is not None and costs[best] < WORTHWHILE * direct else None


def _cost(
    images: int, channels: int, out_channels: int, kernel: int, stride: int, outputs: list[int], tile: int
) -> float:
    """Multiplications of the shorter algorithm, those of its transforms at their price."""
    rows, columns = (axis_algorithm(kernel, stride, length, tile, torch.float32) for length in outputs)
    p, q = rows.points * rows.tiles, columns.points * columns.tiles
    inputs = p * columns.length * rows.inputs.shape[1] + p * q * columns.inputs.shape[1]
    results = p * q * columns.tile + p * outputs[1] * rows.tile
    of_maps = images * (channels * inputs + out_channels * results)
    of_weights = channels * out_channels * rows.points * columns.points * kernel**2
    return images * channels * out_channels * p * q + TRANSFORM_COST * of_maps + of_weights
