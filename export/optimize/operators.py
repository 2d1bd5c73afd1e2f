"""The operators of a plain encoder in their order, by which a graph shows that it is one.

A rewritten graph is made anew from the weights of the plain one, so what the plain one does with them must be
known for certain. A network with another activation, layout or routing differs here and is left alone.
"""

import onnx

SQUASH = ("Pow", "ReduceSum", "Add", "Div", "Add", "Sqrt", "Div", "Mul")
TO_PREDICTIONS = (
    *("Conv", "Relu", "Conv"),
    *("Reshape", "Transpose [0, 1, 3, 2]", "Reshape", *SQUASH),  # u
    *("Transpose [1, 0, 2]", "MatMul", "Reshape", "Transpose [1, 2, 0, 3]"),  # u_hat
)
ZEROS = ("ConstantOfShape",)  # the initial logits, unless they are learned
AGREE = ("Unsqueeze", "MatMul", "Squeeze", "Add")


def couple(none_of_the_above: bool) -> tuple[str, ...]:
    """From logits to coupling coefficients as a matrix product wants them."""
    softmax = ("Pad", "Softmax -2", "Slice") if none_of_the_above else ("Softmax -2",)
    return (*softmax, "Unsqueeze")


def behind_first_coupling(iterations: int, none_of_the_above: bool, bias: bool) -> tuple[str, ...]:
    """From the first weighted sum of predictions to the end of the graph."""
    to_poses = ("MatMul", "Squeeze", *(("Add",) if bias else ()), *SQUASH)
    turn = (*AGREE, *couple(none_of_the_above), *to_poses)
    return (*to_poses, *turn * (iterations - 1), "ReduceL2")


def described(node: onnx.NodeProto) -> str:
    """The operator and, where an attribute says them, its axes: `Softmax -2`."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    axes = attributes.get("perm", attributes.get("axis"))
    return node.op_type if axes is None else f"{node.op_type} {axes}"
