"""The convolution of all networks, by the algorithm that is cheapest when it is trained on a CPU."""

# B images, C channels in, O channels out, H rows, W columns

import torch
from torch import Tensor, nn

from export.fast_convolution.toom_cook import LARGEST
from training.models.convolution import Convolution
from training.models.cpu.bfloat16_convolution import bfloat16_conv2d, has_bfloat16_instructions
from training.models.cpu.cpu_training import trained_on_cpu
from training.models.cpu.short_convolution import axis_algorithm, short_conv2d
from training.models.cpu.unfolded_convolution import unfolded_conv2d_relu

# In tiles of 5 outputs, float32 loses three times as much as in tiles of 4 (9 taps, stride 2).
LARGEST_TILE = 4
# What a multiplication in the maps' transforms takes, in multiplications between channels: they wait for
# memory. Fitted to 9 x 9 and 5 x 5 kernels, 16 to 256 channels, 4 to 64 images; for 3 x 3 it is too hopeful.
TRANSFORM_COST = 4
# How often a weight has to be used until rounding it to bfloat16, and its gradient back, pays off.
BFLOAT16_USES = 256
BFLOAT16_CHANNELS = 8  # below that, a product in bfloat16 takes as long as one in float32
WORTHWHILE = 0.8  # what the shorter algorithm may cost at most, of the direct one: no rule is exact


class CpuConvolution(Convolution):
    """A convolution, trained on a CPU by the algorithm that is cheapest there.

    There, maps keep images and channels last in memory, so that one layer's output is the next one's input
    without a copy; what the tensor means is [B, C, H, W] all the same.

    Attributes:
        in_bfloat16: whether it may compute in bfloat16 while it is trained. In evaluation mode, where
            adversarial examples are made, and where its weights are frozen, it is float32 all the same.
    """

    in_bfloat16 = False

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to maps [B, O, rows, columns]."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if not trained_on_cpu(x):
            return super().forward(x)
        assert self.bias is not None  # nn.Conv2d makes one unless told otherwise
        if self._trained_in_bfloat16(x.shape):
            return bfloat16_conv2d(x, self.scaled_weight(), stride) + self.bias[:, None, None]
        tile = worthwhile_tile(x.shape, self.out_channels, kernel, stride)
        if tile is not None:
            return short_conv2d(x, self.scaled_weight(), stride, tile) + self.bias[:, None, None]
        return super().forward(x)

    def _trained_in_bfloat16(self, shape: tuple[int, ...]) -> bool:
        """Whether it may, and that pays off for maps [B, C, H, W]."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        return (
            self.in_bfloat16
            and self.training
            and self.weight.requires_grad
            and self.in_channels >= BFLOAT16_CHANNELS
            and stride <= kernel
            and uses_of_a_weight(shape, kernel, stride) >= BFLOAT16_USES
        )

    def conv_relu(self, x: Tensor) -> Tensor:
        """The layer and a ReLU, [B, O, rows, columns]."""
        patch = self.in_channels * self.kernel_size[0] ** 2
        if trained_on_cpu(x) and patch <= self.out_channels:  # patches take no more room than the result
            assert self.bias is not None
            return unfolded_conv2d_relu(x, self.scaled_weight(), self.bias, self.stride[0])
        return super().conv_relu(x)


def train_in_bfloat16(model: nn.Module) -> None:
    """Let convolutions be trained in bfloat16, if this machine's CPU has instructions for it."""
    for layer in model.modules():
        if isinstance(layer, CpuConvolution):
            layer.in_bfloat16 = has_bfloat16_instructions()


def uses_of_a_weight(shape: tuple[int, ...], kernel: int, stride: int) -> int:
    """Products that each weight has a part in, of maps [B, C, H, W]: one for every output of every image."""
    images, _, *size = shape
    rows, columns = ((length - kernel) // stride + 1 for length in size)
    return images * rows * columns


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
