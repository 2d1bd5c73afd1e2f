"""Operators of torch whose own translation to ONNX would lose numbers that EM routing needs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import opset20 as op


def log_sigmoid(x: Any) -> Any:
    """Not as the logarithm of a sigmoid, which is 0 below -104."""
    return op.Neg(op.Softplus(op.Neg(x)))


def logsumexp(x: Any, dim: Sequence[int], keepdim: bool = False) -> Any:
    """Relative to the largest element, written out: of a ReduceLogSumExp TensorRT takes no largest one."""
    axes: Any = op.Constant(value_ints=list(dim))
    largest = op.ReduceMax(x, axes, keepdims=1)
    total = op.ReduceSum(op.Exp(op.Sub(x, largest)), axes, keepdims=1)
    result = op.Add(op.Log(total), largest)
    return result if keepdim else op.Squeeze(result, axes)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.logsumexp.default: logsumexp,
}
