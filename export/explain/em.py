"""What EM routing does in an encoder of matrix capsules, as outputs of its graph."""

# N images, T iterations, S parent positions, J parent types, C children of a parent = positions x types
# R x R positions of K types of children that vote for the classes, D elements of a pose

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from export.contract.receptive_fields import Grid
from export.explain.iterations import of_each_image, stacked
from export.optimize.encoder_values import EncoderValues
from export.optimize.nodes import Nodes

SMALLEST = float(np.finfo(np.float32).tiny)  # a share of 0 has no logarithm, and adds nothing to an entropy


@dataclass(frozen=True)
class Layer:
    """A layer of capsules.

    Attributes:
        path: of its values in the encoder: `conv_caps/0`.
        sizes: S, J and C.
        distances: in each iteration from each vote to its parent's mean, [N, S, J, C].
        assignments: of each child to each parent that an iteration's M-step begins with, [N, S, J, C].
        equal_shares: of the first iteration, a constant, [S, 1, C].
    """

    path: str
    sizes: tuple[int, int, int]
    distances: list[str]
    assignments: list[str]
    equal_shares: NDArray[np.float32]


def add_em(nodes: Nodes, model: onnx.ModelProto, grids: dict[str, Grid]) -> None:
    """Add nodes behind those of an encoder that give `export.contract.explain_outputs`.

    Args:
        nodes: where to add them.
        model: the encoder.
        grids: of the convolutional capsule layers, by their names.

    Raises:
        BundleError: the encoder lacks a value.
    """
    encoder = EncoderValues(model)
    for name, grid in grids.items():
        layer = _add_layer(nodes, model, encoder, name.replace(".", "/"))
        _add_convolutional(nodes, encoder, layer, grid, name)
    classes = _add_layer(nodes, model, encoder, "class_caps")
    _add_classes(nodes, encoder, classes, list(grids.values())[-1])


def _add_layer(nodes: Nodes, model: onnx.ModelProto, encoder: EncoderValues, path: str) -> Layer:
    scope, votes = f"explain/{path}", encoder.named(f"{path}/votes")  # [N, S, J, C, D]
    _, positions, types, children, _ = encoder.shape(votes)
    sizes = positions, types, children
    distances = []
    for t, mean in enumerate(encoder.in_iterations(f"{path}/routing/mean"), 1):
        apart = nodes.add("Sub", votes, mean, name=f"{scope}/apart_{t}")
        length = nodes.reduce("ReduceL2", apart, 4, f"{scope}/length_{t}")
        distances.append(nodes.reshape(length, [-1, *sizes], f"{scope}/distance_{t}"))
    mass = encoder.in_iterations(f"{path}/routing/mass")
    equal, *others = (encoder.maker(value).input[0] for value in mass)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    first = of_each_image(nodes, equal, distances[0], f"{scope}/equal_shares")
    return Layer(path, sizes, distances, [first, *others], numpy_helper.to_array(constants[equal]))


def _add_classes(nodes: Nodes, encoder: EncoderValues, layer: Layer, grid: Grid) -> None:
    _, classes, children = layer.sizes
    routing, types = f"{layer.path}/routing", children // grid.size**2
    by_place = (grid.size, grid.size, types)
    means, logs = (encoder.in_iterations(f"{routing}/{name}") for name in ("mean", "log_activations"))
    pose = encoder.shape(means[0])[-1]
    for name, values in (("assignments", layer.assignments), ("distances", layer.distances)):
        found = stacked(nodes, values, (classes, *by_place), f"explain/{name}")
        nodes.transpose(found, (0, 1, 2, 5, 3, 4), name)
    stacked(nodes, means, (classes, pose), "capsules")
    nodes.add("Exp", stacked(nodes, logs, (classes,), "explain/log_activations"), name="activations")
    seen = encoder.named(f"{layer.path}/activations")
    nodes.transpose(nodes.reshape(seen, [-1, *by_place], "explain/activities"), (0, 3, 1, 2), "activities")


def _add_convolutional(nodes: Nodes, encoder: EncoderValues, layer: Layer, grid: Grid, name: str) -> None:
    scope, routing = f"explain/{layer.path}", f"{layer.path}/routing"
    positions, types, _ = layer.sizes
    logs = encoder.in_iterations(f"{routing}/log_activations")
    means = []
    for t, (weights, distance) in enumerate(
        zip(encoder.in_iterations(f"{routing}/weights"), layer.distances, strict=True), 1
    ):
        column = nodes.reshape(distance, [-1, *layer.sizes, 1], f"{scope}/column_{t}")
        means.append(nodes.add("MatMul", weights, column, name=f"{scope}/mean_distance_{t}"))
    found = {
        "activations": nodes.add(
            "Exp", stacked(nodes, logs, (positions, types), f"{scope}/logs"), name=f"{scope}/activations"
        ),
        "distances": stacked(nodes, means, (positions, types), f"{scope}/mean_distances"),
    }
    shape = (len(logs), types, grid.size, grid.size)
    for what, value in found.items():
        by_type = nodes.transpose(value, (0, 1, 3, 2), f"{value}/by_type")
        nodes.reshape(by_type, [-1, *shape], f"{name}.{what}")
    entropies = _entropies(nodes, encoder, layer)
    stacked(nodes, entropies, (), f"{name}.entropy")


def _entropies(nodes: Nodes, encoder: EncoderValues, layer: Layer) -> list[str]:
    """Of the assignments of each iteration, as a share of the largest, [N, 1].

    It is the mean over children, weighted by their activation. A child has a summand of its entropy in each
    receptive field that it lies in.
    """
    scope, (positions, types, children) = f"explain/{layer.path}", layer.sizes
    seen = encoder.named(f"{layer.path}/activations")
    activity = nodes.reshape(seen, [-1, positions, 1, children], f"{scope}/activity")
    parents = 1 / layer.equal_shares  # that a child reaches, [S, 1, C]
    largest = nodes.constant(f"{scope}/largest_entropy", -np.log(np.maximum(parents, 2)))
    # A child of several fields counts once: in each by its share of the parents.
    once = nodes.constant(f"{scope}/share_of_parents", types / parents)
    smallest = nodes.number(f"{scope}/smallest", SMALLEST)

    def total(value: str) -> str:
        flat = nodes.reshape(value, [-1, positions * children], f"{value}/flat")
        return nodes.reduce("ReduceSum", flat, 1, f"{value}/total")  # [N, 1]

    all_activity = total(nodes.add("Mul", activity, once, name=f"{scope}/activity_once"))
    some_activity = nodes.add("Max", all_activity, smallest, name=f"{scope}/some_activity")
    entropies = []
    for t, assignments in enumerate(layer.assignments, 1):
        name = f"{scope}/entropy_{t}"
        above_0 = nodes.add("Max", assignments, smallest, name=f"{name}/above_0")
        logs = nodes.add("Log", above_0, name=f"{name}/logs")
        summands = nodes.add("Mul", assignments, logs, name=f"{name}/summands")
        summed = nodes.reduce("ReduceSum", summands, 2, f"{name}/summed")  # [N, S, 1, C]
        share = nodes.add("Div", summed, largest, name=f"{name}/share")
        weighted = total(nodes.add("Mul", share, activity, name=f"{name}/weighted"))
        entropies.append(nodes.add("Div", weighted, some_activity, name=name))
    return entropies
