"""What a plain graph computes: the weights and numbers of an encoder as capsnet-export writes it."""

# F channels of Conv1, T primary capsule types, E pose of a primary capsule, I primary capsules
# J classes, D pose of a class

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from export.optimize.operators import (
    SQUASH,
    TO_PREDICTIONS,
    ZEROS,
    behind_first_coupling,
    couple,
    described,
)
from export.optimize.toom_cook_1d import Convolution

Floats = NDArray[np.float32]
TINY = 1e-30  # in place of a coupling coefficient of 0, whose logit is -infinity
ROUNDING = 1e-6  # of coupling coefficients in float32 and their sum
Weights = dict[str, onnx.TensorProto]  # by name


class NotOptimizableError(ValueError):
    """The graph is none that can be rewritten; says what it lacks. It still runs as it is."""


@dataclass(frozen=True)
class PlainEncoder:
    """An encoder of dynamic routing.

    Attributes:
        model: the graph it was read from.
        prologue: the nodes from the pixels to the input of Conv1, which is the last one's output.
        channels: of that input.
        conv1: followed by a ReLU.
        primary: its channels are types times pose elements.
        votes: W_ij, [I, E, J * D].
        poses: J and D.
        iterations: of routing.
        none_of_the_above: the softmax has one more logit, always 0.
        priors: initial logits, [J, I], or None for 0.
        bias: of the class capsules, [J, D], or None for 0.
        epsilon: in the squash.
    """

    model: onnx.ModelProto
    prologue: list[onnx.NodeProto]
    channels: int
    conv1: Convolution
    primary: Convolution
    votes: Floats
    poses: tuple[int, int]
    iterations: int
    none_of_the_above: bool
    priors: Floats | None
    bias: Floats | None
    epsilon: float


def read_encoder(model: onnx.ModelProto) -> PlainEncoder:
    """Find an encoder's parts by the names that capsnet-export gives them; nothing else may be in it.

    Raises:
        NotOptimizableError: a part is missing or is not what it is in an encoder of dynamic routing.
    """
    graph = model.graph
    places = {node.name: place for place, node in enumerate(graph.node)}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    missing = {"conv1", "primary_caps/conv", "class_caps/u_hat"} - places.keys()
    if missing or "class_caps.weight" not in weights:
        raise NotOptimizableError(
            f"no encoder of dynamic routing: it has no {', '.join(sorted(missing)) or 'class_caps.weight'}"
        )
    conv1, primary = (
        _unpadded(graph.node[places[name]], weights, known_shapes(model))
        for name in ("conv1", "primary_caps/conv")
    )
    prologue, nodes = list(graph.node[: places["conv1"]]), list(graph.node[places["conv1"] :])
    if not prologue or prologue[-1].output[0] != nodes[0].input[0]:
        raise NotOptimizableError("no encoder of dynamic routing: conv1 reads the input as it is")
    bias = _learned("bias", weights)
    iterations, none_of_the_above, priors = _read_routing(nodes, weights, bias is not None)
    return PlainEncoder(
        model=model,
        prologue=prologue,
        channels=conv1.weight.shape[1],
        conv1=conv1,
        primary=primary,
        votes=numpy_helper.to_array(weights["class_caps.weight"]),
        poses=_poses(model),
        iterations=iterations,
        none_of_the_above=none_of_the_above,
        priors=priors,
        bias=bias,
        epsilon=_epsilon(nodes, weights),
    )


def known_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the values whose sizes are known, by name; a free batch is 0."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in values}


def read_convolution(
    node: onnx.NodeProto, weights: Weights, shapes: dict[str, tuple[int, ...]]
) -> Convolution:
    """A Conv node with constant weights.

    Raises:
        NotOptimizableError: it has groups, dilations, sizes that are not known or weights not in float32.
    """
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    plain = {"group": 1, "dilations": [1, 1], "auto_pad": b"NOTSET"}
    for name, value in plain.items():
        if attributes.get(name, value) != value:
            raise NotOptimizableError(f"{node.name} has {name} {attributes[name]}")
    size = shapes.get(node.input[0], ())
    if len(size) != 4 or 0 in size[1:] or any(name not in weights for name in node.input[1:]):
        raise NotOptimizableError(
            f"{node.name}: its input's size is not known, or its weights are not constant"
        )
    weight = numpy_helper.to_array(weights[node.input[1]])
    if weight.dtype != np.float32:
        raise NotOptimizableError(f"{node.name} has weights in {weight.dtype}, not float32")
    has_bias = len(node.input) > 2
    strides, pads = attributes.get("strides", [1, 1]), attributes.get("pads", [0, 0, 0, 0])
    return Convolution(
        weight=weight,
        bias=numpy_helper.to_array(weights[node.input[2]]) if has_bias else np.zeros(len(weight), np.float32),
        strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        size=(size[2], size[3]),
    )


def _unpadded(node: onnx.NodeProto, weights: Weights, shapes: dict[str, tuple[int, ...]]) -> Convolution:
    convolution = read_convolution(node, weights, shapes)
    if any(convolution.pads):
        raise NotOptimizableError(f"{node.name} has pads {list(convolution.pads)}; an encoder's has none")
    return convolution


def _poses(model: onnx.ModelProto) -> tuple[int, int]:
    """J and D."""
    shape = known_shapes(model).get("poses", ())
    if {value.name for value in model.graph.output} != {"probabilities", "poses"} or len(shape) != 3:
        raise NotOptimizableError(
            "no encoder of dynamic routing: its outputs are not probabilities and poses of three axes"
        )
    return shape[1], shape[2]


def _learned(name: str, weights: Weights) -> Floats | None:
    """Priors or bias, if the encoder has them."""
    tensor = weights.get(f"class_caps.routing.{name}")
    return None if tensor is None else numpy_helper.to_array(tensor)


def _read_routing(
    nodes: list[onnx.NodeProto], weights: Weights, bias: bool
) -> tuple[int, bool, Floats | None]:
    """Iterations, none-of-the-above and priors; the nodes, from Conv1 on, must be an encoder's."""
    behind = nodes[len(TO_PREDICTIONS) :]
    iterations = sum(node.op_type == "Sqrt" for node in behind)  # one squash each
    none_of_the_above = any(node.op_type == "Pad" for node in behind)
    rest = behind_first_coupling(iterations, none_of_the_above, bias)
    # With learned priors the first coupling coefficients or a part of the way there are computed at export.
    whole = (*ZEROS, *couple(none_of_the_above))
    left = min(max(len(behind) - len(rest), 0), len(whole))
    _compare(nodes, (*TO_PREDICTIONS, *whole[len(whole) - left :], *rest))
    priors = _learned("priors", weights)
    if left == 0 and iterations == 1 and behind[0].input[0] in weights:  # [J, 1, I]; the priors are gone
        return 1, *_as_logits(numpy_helper.to_array(weights[behind[0].input[0]])[:, 0])
    if (priors is None) != (left == len(whole)):
        raise NotOptimizableError("no encoder of dynamic routing: its initial logits are not to be found")
    return iterations, none_of_the_above, priors


def _compare(nodes: list[onnx.NodeProto], expected: tuple[str, ...]) -> None:
    for node, operator in zip(nodes, expected, strict=False):
        if described(node) != operator:
            raise NotOptimizableError(
                f"no encoder of dynamic routing: {node.name} is {described(node)}, not {operator}"
            )
    if len(nodes) != len(expected):
        raise NotOptimizableError(
            f"no encoder of dynamic routing: {len(nodes)} nodes from conv1 on, not {len(expected)}"
        )


def _as_logits(c: Floats) -> tuple[bool, Floats]:
    """None-of-the-above or not, and logits [J, I] whose softmax then is c."""
    coupled = np.maximum(c.astype(np.float64), TINY)
    none = 1 - coupled.sum(axis=0)
    none_of_the_above = bool(none.max() > ROUNDING)
    share = np.maximum(none, ROUNDING) if none_of_the_above else 1.0
    return none_of_the_above, np.log(coupled / share).astype(np.float32)


def _epsilon(nodes: list[onnx.NodeProto], weights: Weights) -> float:
    """What each squash adds below the root; the nodes are known to be an encoder's."""
    starts = [place for place, node in enumerate(nodes) if node.op_type == SQUASH[0]]
    # the exponent, what is added to the square, and what is added to it below the root
    numbers = {tuple(_number(nodes[start + place], weights) for place in (0, 2, 4)) for start in starts}
    exponent, one, epsilon = min(numbers)
    if len(numbers) > 1 or (exponent, one) != (2, 1):
        raise NotOptimizableError(f"no encoder of dynamic routing: its squash has other numbers, {numbers}")
    return epsilon


def _number(node: onnx.NodeProto, weights: Weights) -> float:
    """The constant that is a node's second input."""
    tensor = weights.get(node.input[1])
    if tensor is None or tensor.dims:
        raise NotOptimizableError(f"no encoder of dynamic routing: {node.name} has no constant number")
    return float(numpy_helper.to_array(tensor))
