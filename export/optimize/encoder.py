"""The parts of a CapsNet's encoder: its weights, by their names, and its architecture from the manifest."""

# F channels of Conv1, T primary capsule types, E pose of a primary capsule, I primary capsules
# J classes, D pose of a class

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from export.contract.architecture import CapsNetArchitecture
from export.optimize.toom_cook_1d import Convolution

Floats = NDArray[np.float32]


class NotOptimizableError(ValueError):
    """The graph lacks something that the manifest says it has; it runs as it is."""


@dataclass(frozen=True)
class Encoder:
    """An encoder with dynamic routing.

    Attributes:
        model: the plain graph.
        prologue: the nodes from the pixels to the input of Conv1, which is the last one's output.
        convolutions: by the names of their nodes; those of `prologue`, `conv1` and `primary_caps/conv`.
        votes: W_ij, [I, E, J * D].
        poses: J and D.
        iterations: of routing.
        none_of_the_above: the softmax has one more logit, always 0.
        priors: initial logits, [J, I], or None for 0.
        bias: of the class capsules, [J, D], or None for 0.
    """

    model: onnx.ModelProto
    prologue: list[onnx.NodeProto]
    convolutions: dict[str, Convolution]
    votes: Floats
    poses: tuple[int, int]
    iterations: int
    none_of_the_above: bool = False
    priors: Floats | None = None
    bias: Floats | None = None

    @property
    def conv1(self) -> Convolution:
        """Conv1, which a ReLU follows."""
        return self.convolutions["conv1"]

    @property
    def primary(self) -> Convolution:
        """PrimaryCapsules' convolution; its channels are types times pose elements."""
        return self.convolutions["primary_caps/conv"]


def read_encoder(model: onnx.ModelProto, architecture: CapsNetArchitecture) -> Encoder:
    """The parts of an encoder.

    Args:
        model: the plain graph, as capsnet-export writes it.
        architecture: of the network, from the bundle's manifest.

    Raises:
        NotOptimizableError: a node or a weight is missing, or has not the shape that the manifest says.
    """
    weights = _Weights(model)
    convolutions = {
        path.replace(".", "/"): _convolution(weights, architecture, path) for path in architecture.strides
    }
    primary, classes = convolutions["primary_caps/conv"], architecture.classes
    rows, columns = primary.output_size
    pose, class_pose = architecture.primary_dim, architecture.class_dim
    capsules = len(primary.weight) // pose * rows * columns
    routing = "class_caps.routing"
    # One of zeros is left out at export.
    has_bias = architecture.capsule_bias and f"{routing}.bias" in weights
    return Encoder(
        model=model,
        prologue=_before(model, "conv1"),
        convolutions=convolutions,
        votes=weights.read("class_caps.weight", (capsules, pose, classes * class_pose)),
        poses=(classes, class_pose),
        iterations=architecture.routing_iterations,
        none_of_the_above=architecture.none_of_the_above,
        priors=weights.read(f"{routing}.priors", (classes, capsules))
        if architecture.learned_priors
        else None,
        bias=weights.read(f"{routing}.bias", (classes, class_pose)) if has_bias else None,
    )


class _Weights:
    """The weights of a graph by their names."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str, shape: tuple[int | None, ...]) -> Floats:
        """A weight; None in the shape is any length."""
        if name not in self._tensors:
            raise NotOptimizableError(f"the graph has no weight {name}")
        values = numpy_helper.to_array(self._tensors[name])
        if values.dtype != np.float32:
            raise NotOptimizableError(f"{name} is {values.dtype}, not float32")
        fits = [length in {None, found} for length, found in zip(shape, values.shape, strict=False)]
        if len(shape) != values.ndim or not all(fits):
            raise NotOptimizableError(f"{name} is {list(values.shape)}; by the manifest it is {list(shape)}")
        return values


def _convolution(weights: _Weights, architecture: CapsNetArchitecture, path: str) -> Convolution:
    size, stride = architecture.sizes[path], architecture.strides[path]
    weight = weights.read(f"{path}.weight", (None, None, None, None))
    bias = np.zeros(len(weight), np.float32)  # which is left out at export
    if f"{path}.bias" in weights:
        bias = weights.read(f"{path}.bias", (len(weight),))
    return Convolution(weight, bias, (stride, stride), (size, size))


def _before(model: onnx.ModelProto, name: str) -> list[onnx.NodeProto]:
    """The nodes before the one of this name, at least one."""
    nodes = list(model.graph.node)
    place = next((place for place, node in enumerate(nodes) if node.name == name), 0)
    if place == 0 or nodes[place].input[0] != nodes[place - 1].output[0]:
        raise NotOptimizableError(f"the graph has no node {name} behind others")
    return nodes[:place]
