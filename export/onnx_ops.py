"""Operators of torch whose own translation to ONNX would lose numbers that EM routing needs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnxscript import opset20 as op


def log_sigmoid(x: Any) -> Any:
    """-softplus(-x): torch's own, the log of a sigmoid, is -inf below -104, where that is 0 in float32."""
    return op.Neg(op.Softplus(op.Neg(x)))


def logsumexp(x: Any, dim: Sequence[int], keepdim: bool = False) -> Any:
    """Written out, max + log(sum(exp(x - max))): TensorRT's ReduceLogSumExp takes no maximum out."""
    axes: Any = op.Constant(value_ints=list(dim))
    largest = op.ReduceMax(x, axes, keepdims=1)
    total = op.ReduceSum(op.Exp(op.Sub(x, largest)), axes, keepdims=1)
    result = op.Add(op.Log(total), largest)
    return result if keepdim else op.Squeeze(result, axes)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.logsumexp.default: logsumexp,
}
