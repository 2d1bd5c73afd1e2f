"""A convolution of few channels and its ReLU as matrix products, row by row, for training on a CPU.

The first layer turns one or three channels into hundreds, at more positions than any other layer. Its cost is
not the arithmetic but reading and writing the result once per operator. So each row of outputs goes from
patches to ReLU, and back, while it is in the cache, and only the result is kept.
"""

# B images, C channels in, O channels out, H rows, W columns, K kernel rows and columns

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input


def unfolded_conv2d_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """What `relu(F.conv2d(x, weight, bias, stride))` gives, up to rounding, and its gradients.

    Args:
        x: [B, C, H, W].
        weight: [O, C, K, K].
        bias: [O].
        stride: along both axes.

    Returns:
        [B, O, rows, columns], in memory [rows, columns, B, O].
    """
    y: Tensor = _UnfoldedConvolution.apply(x, weight, bias, stride)
    return y


class _UnfoldedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        kernel = weight.shape[2]
        rows, columns = ((length - kernel) // stride + 1 for length in x.shape[2:])
        y = x.new_empty(rows, columns * len(x), len(weight))
        for row in range(rows):
            torch.addmm(bias, _patches(x, row, kernel, stride), weight.flatten(1).mT, out=y[row]).relu_()
        ctx.stride = stride
        ctx.save_for_backward(x, weight, y)
        return y.view(rows, columns, len(x), len(weight)).permute(2, 3, 0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, y = ctx.saved_tensors
        kernel = weight.shape[2]
        dweight, dbias = weight.new_zeros(len(weight), weight[0].numel()), weight.new_zeros(len(weight))
        dmaps = dy.permute(2, 3, 0, 1).reshape(y.shape)
        for row in range(len(y)):
            before_relu = torch.ops.aten.threshold_backward(dmaps[row], y[row], 0)
            dweight.addmm_(before_relu.mT, _patches(x, row, kernel, ctx.stride))
            dbias += before_relu.sum(dim=0)
        dx = None
        if ctx.needs_input_grad[0]:
            before_relu = torch.ops.aten.threshold_backward(dmaps, y, 0)
            maps = before_relu.view(len(y), -1, len(x), len(weight)).permute(2, 3, 0, 1)
            dx = conv2d_input(x.shape, weight, maps, ctx.stride)
        return dx, dweight.view(weight.shape), dbias, None


def _patches(x: Tensor, row: int, kernel: int, stride: int) -> Tensor:
    """What a row of outputs sees, [columns * B, C * K * K]."""
    maps = x[:, :, row * stride : row * stride + kernel].unfold(3, kernel, stride)  # [B, C, K, columns, K]
    return maps.permute(3, 0, 1, 2, 4).flatten(2).flatten(0, 1)
