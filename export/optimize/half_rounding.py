"""A graph in half precision that a CPU rounds as a GPU does.

ONNX Runtime's CPU provider computes products of float16 in float32. Of two such products in a row it also
removes the casts to float16 and back, even with its optimizations disabled: nothing in between is rounded,
and nothing overflows. Here arithmetic in float32, which it leaves as it is, does the rounding.
"""

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from export.optimize.half_precision import PRODUCTS

LARGEST = "half/largest"  # the output that is added: the largest absolute value that is rounded
# A number plus 2^13 times itself, minus the same, keeps 11 of float32's 24 bits, as many as float16 has
# (Dekker 1971, https://doi.org/10.1007/BF01397083).
_SPLIT, _SPLIT_VALUE = "half/split", 2.0**13 + 1


def rounded_by_arithmetic(half: onnx.ModelProto) -> onnx.ModelProto:
    """The graph, in which what is float16 is rounded to 11 bits, and one more output, LARGEST.

    Exponents stay those of float32. Where LARGEST is above 65,504, float16 has no such value, and the other
    outputs mean nothing; values below 6e-5 keep 11 bits, where float16 has multiples of 6e-8.

    Args:
        half: what `half_precision` made; it is not changed.
    """
    made = onnx.ModelProto()
    made.CopyFrom(half)
    nodes: list[NodeProto] = []
    largest: list[str] = []
    for node in made.graph.node:
        nodes.append(node)
        if _gives_half(node):
            name = node.output[0]
            node.output[0] = f"{name}/exact"
            nodes += _rounding(f"{name}/exact", name)
            largest.append(f"{name}/largest")
    nodes.append(helper.make_node("Max", largest, [LARGEST], LARGEST))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.initializer.append(numpy_helper.from_array(np.array(_SPLIT_VALUE, np.float32), _SPLIT))
    made.graph.output.append(helper.make_tensor_value_info(LARGEST, TensorProto.FLOAT, []))
    onnx.checker.check_model(made, full_check=True)
    return made


def _gives_half(node: NodeProto) -> bool:
    """Whether the node rounds to float16: a product, or a cast; others pass on what is rounded already."""
    is_cast = node.op_type == "Cast" and helper.get_node_attr_value(node, "to") == TensorProto.FLOAT16
    return is_cast or node.op_type in PRODUCTS


def _rounding(exact: str, name: str) -> list[NodeProto]:
    """Nodes from a value that a CPU may not have rounded to its largest number, and to the rounded value."""
    return [
        helper.make_node("Cast", [exact], [f"{name}/x"], to=TensorProto.FLOAT),
        helper.make_node("Abs", [f"{name}/x"], [f"{name}/sizes"]),
        helper.make_node("ReduceMax", [f"{name}/sizes"], [f"{name}/largest"], keepdims=0),
        helper.make_node("Mul", [f"{name}/x", _SPLIT], [f"{name}/times"]),
        helper.make_node("Sub", [f"{name}/times", f"{name}/x"], [f"{name}/rest"]),
        helper.make_node("Sub", [f"{name}/times", f"{name}/rest"], [f"{name}/rounded"]),
        helper.make_node("Cast", [f"{name}/rounded"], [name], to=TensorProto.FLOAT16),
    ]
