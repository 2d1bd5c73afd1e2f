"""What a plain graph computes: the weights and numbers of an encoder as capsnet-export writes it."""

# F channels of Conv1, T primary capsule types, E pose of a primary capsule, I primary capsules
# J classes, D pose of a class

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from export.optimize.one_axis import Convolution

Floats = NDArray[np.float32]


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
    """Find an encoder's parts by the names that capsnet-export gives them.

    Raises:
        NotOptimizableError: a part is missing or is not what it is in an encoder of dynamic routing.
    """
    graph = model.graph
    nodes = {node.name: (position, node) for position, node in enumerate(graph.node)}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    shapes = known_shapes(model)
    missing = {"conv1", "primary_caps/conv", "class_caps/u_hat"} - nodes.keys()
    if missing or "class_caps.weight" not in weights:
        raise NotOptimizableError(
            f"no encoder of dynamic routing: it has no {', '.join(sorted(missing)) or 'class_caps.weight'}"
        )
    first, conv1 = nodes["conv1"]
    jd = shapes.get("poses", ())[1:]
    if len(jd) != 2:
        raise NotOptimizableError("no encoder of dynamic routing: its poses are not [batch, classes, pose]")
    routing = [name for name in nodes if name.startswith("class_caps/routing/")]
    optional = {
        name: numpy_helper.to_array(weights[f"class_caps.routing.{name}"])
        for name in ("priors", "bias")
        if f"class_caps.routing.{name}" in weights
    }
    return PlainEncoder(
        model=model,
        prologue=list(graph.node[:first]),
        channels=shapes[conv1.input[0]][1],
        conv1=read_convolution(conv1, weights, shapes),
        primary=read_convolution(nodes["primary_caps/conv"][1], weights, shapes),
        votes=numpy_helper.to_array(weights["class_caps.weight"]),
        poses=(jd[0], jd[1]),
        iterations=sum(node.op_type == "Softmax" for _, node in nodes.values()) or 1,
        none_of_the_above=any("/with_none" in name for name in routing),
        priors=optional.get("priors"),
        bias=optional.get("bias"),
        epsilon=_epsilon(graph, weights),
    )


def known_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the values whose sizes are known, by name; a free batch is 0."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim) for value in values}


def read_convolution(
    node: onnx.NodeProto, weights: dict[str, onnx.TensorProto], shapes: dict[str, tuple[int, ...]]
) -> Convolution:
    """A Conv node with constant weights.

    Raises:
        NotOptimizableError: it has groups, dilations or sizes that are not known.
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
    has_bias = len(node.input) > 2
    strides, pads = attributes.get("strides", [1, 1]), attributes.get("pads", [0, 0, 0, 0])
    return Convolution(
        weight=weight,
        bias=numpy_helper.to_array(weights[node.input[2]]) if has_bias else np.zeros(len(weight), np.float32),
        strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        size=(size[2], size[3]),
    )


def _epsilon(graph: onnx.GraphProto, weights: dict[str, onnx.TensorProto]) -> float:
    """What the primary capsules' squash adds below the root."""
    inside = {node.input[0] for node in graph.node if node.op_type == "Sqrt"}
    for node in graph.node:
        if node.name.startswith("primary_caps/") and node.output[0] in inside and node.input[1] in weights:
            return float(numpy_helper.to_array(weights[node.input[1]]))
    raise NotOptimizableError("no encoder of dynamic routing: its primary capsules have no squash")
