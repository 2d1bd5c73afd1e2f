"""A convolution in bfloat16, forward and backward, for training on a CPU that has instructions for it.

Such a CPU multiplies bfloat16 at four times the rate of float32 and more, and a direct convolution takes no
transforms of its maps: it outruns the shorter algorithm of short_convolution.py, which would lose too many
digits in bfloat16. Products are summed in float32 and each sum is rounded, that of a weight's gradient some
images at a time; outside of here, weights, maps and gradients are float32. On CUDA it is the same.

With stride s, a kernel is split into s * s kernels of stride 1, each for every s-th row and column (polyphase
decomposition): oneDNN takes up to twice as long for the gradients of a strided convolution.

oneDNN multiplies the outputs of one row at a time, and an instruction of AMX takes up to 16 of them: six
columns leave most of it idle. So images are laid side by side, a column of each in turn. A convolution of all
of them is then one of a single wide image, whose kernel skips the columns of the others (dilation).
"""

# B images, C channels in, O channels out, H rows, W columns

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# With fewer columns of outputs, results and the gradients of maps come sooner side by side as well; those of
# weights always do. That is so with AMX; a CPU with AVX512-BF16 alone takes about as long either way.
NARROW = 8


@lru_cache
def has_bfloat16_instructions() -> bool:
    """Whether this machine's CPU multiplies bfloat16 without going by way of float32."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def bfloat16_conv2d(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """What `F.conv2d(x, weight, stride=stride)` gives, and its gradients, up to rounding to bfloat16.

    Results and gradients are off by about 0.3 % of their size.

    Args:
        x: [B, C, H, W], float32, in any order in memory.
        weight: [O, C, kernel rows, kernel columns], float32.
        stride: along both axes, at most the kernel's size.

    Returns:
        [B, O, rows, columns], float32, in memory [rows, columns, B, O].
    """
    y: Tensor = _Bfloat16Convolution.apply(x, weight, stride)
    return y


class _Bfloat16Convolution(torch.autograd.Function):
    """Saves maps and weights in bfloat16, phase by phase: half of what a direct convolution saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        images = len(x)
        rows, columns = (
            (length - taps) // stride + 1 for length, taps in zip(x.shape[2:], weight.shape[2:], strict=True)
        )
        y = _channels_inside(x.new_zeros(rows, columns, images, len(weight)))
        phases = []
        for place in _phases(stride):
            taps = weight[place].to(torch.bfloat16, memory_format=torch.channels_last)
            maps = _side_by_side(x[place][:, :, : rows + taps.shape[2] - 1, : columns + taps.shape[3] - 1])
            y += _convolved(maps, taps, images)
            phases += [maps, taps]
        ctx.stride, ctx.sizes = stride, (x.shape, weight.shape)
        ctx.save_for_backward(*phases)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (images, channels, height, width), kernel = ctx.sizes
        dx = None
        if ctx.needs_input_grad[0]:
            dx = _channels_inside(dy.new_empty(height, width, images, channels))
            dx[:, :, (dy.shape[2] - 1) * ctx.stride + kernel[2] :] = 0  # what no kernel sees
            dx[:, :, :, (dy.shape[3] - 1) * ctx.stride + kernel[3] :] = 0
        dweight = _channels_inside(dy.new_empty(*kernel[2:], *kernel[:2]))
        gradient = _side_by_side(dy)
        phases = iter(ctx.saved_tensors)
        for place, maps, taps in zip(_phases(ctx.stride), phases, phases, strict=True):
            _, dweight[place] = _gradients(gradient, maps, taps, images, [False, True])
            if dx is not None:
                dmaps = _gradient_of_maps(gradient, maps, taps, images)
                dx[place][:, :, : dmaps.shape[2], : dmaps.shape[3]] = dmaps
        return dx, dweight, None


def _phases(stride: int) -> Iterator[tuple[Any, ...]]:
    """Indices of every s-th row and column, from each of the first s * s places on."""
    for row in range(stride):
        for column in range(stride):
            yield ..., slice(row, None, stride), slice(column, None, stride)


def _convolved(maps: Tensor, taps: Tensor, images: int) -> Tensor:
    """A convolution with stride 1 of images that lie side by side, [B, O, rows, columns]."""
    if maps.shape[3] // images - taps.shape[3] + 1 < NARROW:
        return _apart(F.conv2d(maps, taps, dilation=(1, images)), images)
    return F.conv2d(_channels_last(_apart(maps, images)), taps)


def _gradient_of_maps(dy: Tensor, maps: Tensor, taps: Tensor, images: int) -> Tensor:
    """[B, C, H, W], of images that lie side by side, as their outputs' gradient does."""
    if dy.shape[3] // images < NARROW:
        return _apart(_gradients(dy, maps, taps, images, [True, False])[0], images)
    shape_alone = torch.empty_like(_apart(maps, images), memory_format=torch.channels_last)
    return _gradients(_channels_last(_apart(dy, images)), shape_alone, taps, 1, [True, False])[0]


def _gradients(dy: Tensor, maps: Tensor, taps: Tensor, dilation: int, wanted: list[bool]) -> list[Tensor]:
    """Of maps and of taps, where they are wanted, of a convolution that is dilated along columns."""
    found: list[Tensor] = torch.ops.aten.convolution_backward(
        *(dy, maps, taps, None, [1, 1], [0, 0], [1, dilation], False, [0, 0], 1), [*wanted, False]
    )
    return found[:2]


def _side_by_side(maps: Tensor) -> Tensor:
    """From [B, C, H, W] to one image in bfloat16, [1, C, H, W * B], channels last in memory.

    Its columns are the first column of each image, then the second of each, and so on.
    """
    by_place = maps.permute(2, 3, 0, 1).to(torch.bfloat16, memory_format=torch.contiguous_format)
    return by_place.flatten(1, 2)[None].permute(0, 3, 1, 2)


def _apart(wide: Tensor, images: int) -> Tensor:
    """A view [B, C, H, W] of images that lie side by side, [1, C, H, W * B]."""
    return wide[0].unflatten(2, (-1, images)).permute(3, 0, 1, 2)


def _channels_last(maps: Tensor) -> Tensor:
    """[B, C, H, W], in this order in memory: B, H, W, C."""
    return maps.contiguous(memory_format=torch.channels_last)


def _channels_inside(maps: Tensor) -> Tensor:
    """A view [B, C, H, W] of what is [H, W, B, C] in memory."""
    return maps.permute(2, 3, 0, 1)
