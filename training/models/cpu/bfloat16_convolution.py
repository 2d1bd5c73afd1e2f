"""A convolution in bfloat16, forward and backward, for training on a CPU that has instructions for it.

Such a CPU multiplies bfloat16 at four times the rate of float32 and more, and a direct convolution takes no
transforms of its maps: it outruns the shorter algorithm of short_convolution.py, which would lose too many
digits in bfloat16. Products are summed in float32 and each sum is rounded, that of a weight's gradient some
images at a time; outside of here, weights, maps and gradients are float32. On CUDA it is the same.

With stride s, a kernel is split into s * s kernels of stride 1, each for every s-th row and column (polyphase
decomposition): oneDNN takes up to twice as long for the gradients of a strided convolution.
"""

# B images, C channels in, O channels out, H rows, W columns

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# From so many channels in and out, weights get their gradient sooner by a matrix product for each tap than by
# oneDNN: with 256 channels and 6 x 6 outputs in 0.6 of its time. Larger maps take as long, 64 channels twice.
WIDE = 96
# Positions summed by one product. What a tap sees is copied first, and the copy should fit into the cache.
PRODUCT_LENGTH = 4608


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
        rows, columns = (
            (length - taps) // stride + 1 for length, taps in zip(x.shape[2:], weight.shape[2:], strict=True)
        )
        y = _channels_inside(x.new_zeros(rows, columns, len(x), len(weight)))
        phases = []
        for place in _phases(stride):
            taps = _rounded(weight[place])
            maps = _rounded(x[place][:, :, : rows + taps.shape[2] - 1, : columns + taps.shape[3] - 1])
            y += F.conv2d(maps, taps)
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
        dweight = _channels_inside(dy.new_zeros(*kernel[2:], *kernel[:2]))
        gradient = _rounded(dy)
        phases = iter(ctx.saved_tensors)
        wide = min(kernel[:2]) >= WIDE
        for place, maps, taps in zip(_phases(ctx.stride), phases, phases, strict=True):
            dmaps, dtaps, _ = torch.ops.aten.convolution_backward(
                *(gradient, maps, taps, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
                [dx is not None, not wide, False],
            )
            if dx is not None:
                dx[place][:, :, : maps.shape[2], : maps.shape[3]] = dmaps
            if wide:
                _add_weight_gradient(gradient, maps, dweight[place])
            else:
                dweight[place] = dtaps
        return dx, dweight, None


def _add_weight_gradient(dy: Tensor, maps: Tensor, out: Tensor) -> None:
    """Add the gradient of the weights of a convolution with stride 1, by a matrix product for each tap.

    Args:
        dy: [B, O, rows, columns], channels last in memory.
        maps: [B, C, H, W], likewise.
        out: [O, C, kernel rows, kernel columns], to which it is added.
    """
    rows, columns = dy.shape[2:]
    images = max(PRODUCT_LENGTH // (rows * columns), 1)
    for some_dy, some_maps in zip(dy.split(images), maps.split(images), strict=True):
        by_channel = some_dy.permute(1, 0, 2, 3).flatten(1).contiguous()  # [O, images * rows * columns]
        for row in range(out.shape[2]):
            for column in range(out.shape[3]):
                seen = some_maps[:, :, row : row + rows, column : column + columns].permute(0, 2, 3, 1)
                out[:, :, row, column] += by_channel @ seen.reshape(-1, maps.shape[1])


def _phases(stride: int) -> Iterator[tuple[Any, ...]]:
    """Indices of every s-th row and column, from each of the first s * s places on."""
    for row in range(stride):
        for column in range(stride):
            yield ..., slice(row, None, stride), slice(column, None, stride)


def _rounded(x: Tensor) -> Tensor:
    """To bfloat16, with channels last in memory, [B, C, H, W]."""
    return x.to(torch.bfloat16, memory_format=torch.channels_last)


def _channels_inside(maps: Tensor) -> Tensor:
    """A view [B, C, H, W] of what is [H, W, B, C] in memory."""
    return maps.permute(2, 3, 0, 1)
