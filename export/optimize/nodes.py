"""Nodes and constants of a graph under construction."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


class Nodes:
    """Collects nodes and constants; what makes a value gives its name, which is its node's as well."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, name: str, **attributes: Any) -> str:
        """One node with one output."""
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """A constant; floating-point numbers become float32."""
        if np.issubdtype(values.dtype, np.floating):
            values = values.astype(np.float32)
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def number(self, name: str, value: float) -> str:
        """A float32 constant without axes."""
        return self.constant(name, np.array(value))

    def reshape(self, value: str, shape: Sequence[int], name: str) -> str:
        """The value in another shape; -1 is the axis with the batch."""
        return self.add("Reshape", value, self._integers(f"{name}/shape", shape), name=name)

    def transpose(self, value: str, axes: Sequence[int], name: str) -> str:
        """The value with its axes in this order."""
        return self.add("Transpose", value, name=name, perm=list(axes))

    def reduce(self, operator: str, value: str, axis: int, name: str) -> str:
        """The value with this axis reduced to length 1."""
        return self.add(operator, value, self._integers(f"{name}/axes", [axis]), name=name, keepdims=1)

    def matmul(self, name: str, matrix: NDArray[Any], value: str) -> str:
        """The value multiplied from the left by a constant matrix, [..., m, n] by [..., n, N]."""
        return self.add("MatMul", self.constant(f"{name}/matrix", matrix), value, name=name)

    def _integers(self, name: str, values: Sequence[int]) -> str:
        return self.constant(name, np.array(values, np.int64))


def with_nodes(model: onnx.ModelProto, nodes: Nodes) -> onnx.ModelProto:
    """The model with these nodes instead of its own; of its weights it keeps those that are read."""
    used = {name for node in nodes.nodes for name in node.input}
    used -= {tensor.name for tensor in nodes.constants}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    plain = model.graph
    graph = helper.make_graph(nodes.nodes, plain.name, plain.input, plain.output, kept + nodes.constants)
    return helper.make_model(
        graph,
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
    )
