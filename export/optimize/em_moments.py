"""EM routing from moments: in each iteration votes enter into nothing but products with a vector.

As it is written down (`training/models/em.py`), every iteration subtracts a parent's mean from all its votes
and squares the differences. That passes three times over the largest array of the network, in rows of 16
numbers, which ONNX Runtime does slowly. But differences to one point c tell those to any other. Let d = v - c
for each vote v, m the mean of an iteration and e = m - c. With weights w, whose sum k is 1 but for the mass
floor, and the parent's precisions p:

    M-step:  m                  =  sum w d + k c
             sum w (v - m)^2    =  sum w d^2 - e (2 sum w d - k e)
    E-step:  sum p (v - m)^2    =  sum p d^2 - 2 sum (p e) d + sum p e^2

The sums over a parent's children, or over the elements of a pose, are products of d or d^2 with a vector. The
point c is the mean of the first iteration. It lies among the votes, so that d^2 is about as large as their
variance and little is lost by subtraction; and in the first iteration d^2 are the squared differences.

The votes are one matrix product for each child, of its pose, all 16 numbers, with the matrices of all
parents, each 4x4 matrix four times along the diagonal of one of 16x16. That is four times the arithmetic,
but the numbers come out in rows of 16, which are moved to where routing wants them as they are.
"""

# B images, S child positions, K of them in a receptive field, I child types, N = K I children of a parent
# P parent positions, J parent types, H = 16 pose elements: R rows of D numbers, with matrices of D x D

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from export.contract.architecture import MatrixCapsNetArchitecture
from export.contract.manifest import BundleError
from export.optimize.encoder import NotOptimizableError
from export.optimize.encoder_values import EncoderValues
from export.optimize.nodes import Nodes, with_nodes

Floats = NDArray[np.float32]
LAYERS = ("conv_caps/0", "conv_caps/1", "class_caps")
# Votes as capsnet-export writes them, in some layers with expanded matrices or with offsets.
VOTES = re.compile("Gather Reshape( Expand)? Einsum Reshape( Add)?")
EQUATION = b"bpkirm,kijmc->bpjkirc"
POSE = 16


@dataclass(frozen=True)
class Layer:
    """Capsules that EM routing fits to their children's votes.

    Attributes:
        path: what the names of its values begin with.
        poses: the value with the children's poses, [B, S, I, H].
        inside: the child position in each place of each receptive field, [P, K].
        matrices: of each child in a receptive field, [K, I, J, D, D].
        offsets: added to the votes, [N, H], or None for 0.
        weights: the value of each iteration, [B, P, J, 1, N]; in the first J is 1.
        means: the same, [B, P, J, 1, H].
        squares: the same, [B, P, J, N, H]; after the first there will be none.
    """

    path: str
    poses: str
    inside: NDArray[np.int64]
    matrices: Floats
    offsets: Floats | None
    weights: list[str]
    means: list[str]
    squares: list[str]

    @property
    def votes(self) -> str:
        """Those of the plain graph, [B, P, J, N, H]."""
        return f"{self.path}/votes"

    @property
    def centered(self) -> str:
        """Votes minus the first mean, d, [B, P, J, N, H]."""
        return f"{self.path}/centered"

    @property
    def children(self) -> int:
        """N."""
        return self.matrices.shape[0] * self.matrices.shape[1]

    @property
    def types(self) -> int:
        """J."""
        return self.matrices.shape[2]

    @property
    def by_parent(self) -> tuple[int, ...]:
        """The first axes of what each parent has, [B, P, J]."""
        return -1, len(self.inside), self.types


def em_moments(model: onnx.ModelProto, architecture: MatrixCapsNetArchitecture) -> onnx.ModelProto:
    """The encoder with its EM routing from moments, with the same inputs and outputs.

    A layer stays as it is if its routing is a variant that has not all of the values that are replaced, or
    if export could not make constants of its matrices.

    Args:
        model: the plain graph, as capsnet-export writes it. It is not changed.
        architecture: of the network, from the bundle's manifest.

    Raises:
        NotOptimizableError: all layers stay as they are.
    """
    values = EncoderValues(model)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    replaced: dict[str, Callable[[Nodes], object]] = {}  # by a node's name: what adds others in its place
    for path in LAYERS:
        with suppress(NotOptimizableError, BundleError):
            layer = _read(values, constants, path, architecture.routing_iterations)
            replaced |= _replacements(model, layer, values)
    if not replaced:
        raise NotOptimizableError("no layer has routing as capsnet-export writes it")
    nodes = Nodes()
    for node in model.graph.node:
        if node.name in replaced:
            replaced[node.name](nodes)
        else:
            nodes.nodes.append(node)
    return with_nodes(model, nodes)


def _read(values: EncoderValues, constants: dict[str, onnx.TensorProto], path: str, iterations: int) -> Layer:
    """The parts of a layer, by their names.

    Raises:
        BundleError: the graph has no value of such a name.
        NotOptimizableError: a value comes about in another way than capsnet-export writes it.
    """
    weights, means, squares = (
        values.in_iterations(f"{path}/routing/{name}") for name in ("weights", "mean", "squares")
    )
    if not len(weights) == len(means) == len(squares) == iterations:
        raise NotOptimizableError(f"{path} has not the values of {iterations} iterations")
    steps = values.steps(f"{path}/votes")
    by_operator = {node.op_type: node for node in steps}
    if not VOTES.fullmatch(operators := " ".join(node.op_type for node in steps)):
        raise NotOptimizableError(f"{path}/votes is computed by {operators}")
    if [attribute.s for attribute in by_operator["Einsum"].attribute] != [EQUATION]:
        raise NotOptimizableError(f"{path}/votes is another product than {EQUATION.decode()}")
    inside = _constant(constants, by_operator["Gather"])
    matrices = _constant(constants, by_operator.get("Expand", by_operator["Einsum"]))
    offsets = _constant(constants, by_operator["Add"]) if "Add" in by_operator else None
    if matrices.ndim != 5 or inside.size % matrices.shape[0]:
        raise NotOptimizableError(f"{path} has matrices {matrices.shape} for {inside.size} places")
    return Layer(
        path=path,
        poses=by_operator["Gather"].input[0],
        inside=inside.reshape(-1, matrices.shape[0]).astype(np.int64),
        matrices=matrices.astype(np.float32),
        offsets=None if offsets is None else offsets.astype(np.float32),
        weights=weights,
        means=means,
        squares=squares,
    )


def _constant(constants: dict[str, onnx.TensorProto], node: onnx.NodeProto) -> NDArray[Any]:
    """What a node reads of the weights; of an Expand what it makes of them.

    Raises:
        NotOptimizableError: it reads none.
    """
    read = [numpy_helper.to_array(constants[name]) for name in node.input if name in constants]
    if node.op_type == "Expand" and len(read) == 2:
        return np.broadcast_to(read[0], read[1])
    if len(read) != 1:
        raise NotOptimizableError(f"{node.name} reads no constant")
    return read[0]


def _replacements(
    model: onnx.ModelProto, layer: Layer, values: EncoderValues
) -> dict[str, Callable[[Nodes], object]]:
    """What adds others in the place of which node, by its name; in the place of some comes nothing."""
    steps = (layer.votes, *layer.squares)
    replaced: dict[str, Callable[[Nodes], object]] = {
        node.name: _add_nothing
        for node in model.graph.node
        if any(node.name == step or node.name.startswith(f"{step}/") for step in steps)
    }
    # The first mean comes with its squares, which the first variance and distances read as they are.
    replaced[layer.means[0]] = partial(add_centered_votes, layer=layer)
    for t in range(1, len(layer.means)):
        replaced[layer.means[t]] = partial(add_mean, layer=layer, t=t)
        for node in values.readers(layer.squares[t], "MatMul", 1):
            replaced[node.name] = partial(add_variance, layer=layer, t=t, node=node)
        for node in values.readers(layer.squares[t], "MatMul", 0):
            replaced[node.name] = partial(add_distances, layer=layer, t=t, node=node)
    _refuse_other_readers(model, layer, replaced.keys())
    return replaced


def _add_nothing(_: Nodes) -> None:
    """In the place of what is not needed any more."""


def _refuse_other_readers(model: onnx.ModelProto, layer: Layer, replaced: Collection[str]) -> None:
    """Nothing but what is replaced reads votes, or squares after the first.

    Raises:
        NotOptimizableError: something does, as where a mean keeps a share of the previous one.
    """
    gone = {layer.votes, *layer.squares[1:]}
    for node in model.graph.node:
        if node.name not in replaced and gone.intersection(node.input):
            raise NotOptimizableError(f"{node.name} reads votes or squares that would not be there")


def add_centered_votes(nodes: Nodes, layer: Layer) -> None:
    """Votes minus the first mean, their squares, and that mean, under their names."""
    scope, children, types = layer.votes, layer.children, layer.types
    places, child_types = layer.matrices.shape[:2]
    positions = len(layer.inside)
    by_child = nodes.constant(f"{scope}/inside", layer.inside.T.flatten())
    gathered = nodes.add("Gather", layer.poses, by_child, name=f"{scope}/gathered", axis=1)
    parted = nodes.reshape(gathered, [-1, places, positions, child_types, POSE], f"{scope}/parted")
    outward = nodes.transpose(parted, (1, 3, 0, 2, 4), f"{scope}/outward")
    poses = nodes.reshape(outward, [children, -1, POSE], f"{scope}/poses")  # [N, B P, H]
    votes = nodes.add(
        "MatMul", poses, nodes.constant(f"{scope}/matrices", _along_diagonal(layer)), name=f"{scope}/by_child"
    )
    center = _add_center(nodes, layer, poses)  # [B P, J H]
    if layer.offsets is not None:
        offsets = np.tile(layer.offsets, types).reshape(children, 1, types * POSE)
        votes = nodes.add(
            "Add", votes, nodes.constant(f"{scope}/offsets", offsets), name=f"{scope}/with_offsets"
        )
    apart = nodes.add("Sub", votes, center, name=f"{scope}/apart")
    by_type = nodes.reshape(apart, [children, -1, types, POSE], f"{scope}/by_type")
    inward = nodes.transpose(by_type, (1, 2, 0, 3), f"{scope}/inward")
    centered = nodes.reshape(inward, [*layer.by_parent, children, POSE], layer.centered)
    nodes.add("Mul", centered, centered, name=layer.squares[0])
    nodes.reshape(center, [*layer.by_parent, 1, POSE], layer.means[0])


def _along_diagonal(layer: Layer) -> Floats:
    """Each child's matrices of all types, each R times along the diagonal of one of H x H, [N, H, J H]."""
    _, _, types, side, _ = layer.matrices.shape
    matrices = layer.matrices.reshape(layer.children, types, side, side)
    rows = np.eye(POSE // side, dtype=np.float32)
    return np.einsum("rq,njsc->nrsjqc", rows, matrices).reshape(layer.children, POSE, types * POSE)


def _add_center(nodes: Nodes, layer: Layer, poses: str) -> str:
    """The first mean, [B P, J H]: the children are weighted alike for all types, so before their matrices.

    Args:
        nodes: where to add.
        layer: of capsules.
        poses: of the children, [N, B P, H].
    """
    scope, children, types = f"{layer.path}/center", layer.children, layer.types
    side = layer.matrices.shape[3]
    rows = POSE // side
    by_parent = nodes.reshape(layer.weights[0], [-1, children], f"{scope}/weights")  # [B P, N]
    by_child = nodes.transpose(by_parent, (1, 0), f"{scope}/weights/by_child")
    column = nodes.reshape(by_child, [children, -1, 1], f"{scope}/weights/column")
    weighted = nodes.add("Mul", poses, column, name=f"{scope}/weighted")
    parted = nodes.reshape(weighted, [children, -1, rows, side], f"{scope}/parted")
    inward = nodes.transpose(parted, (1, 2, 0, 3), f"{scope}/inward")
    flat = nodes.reshape(inward, [-1, children * side], f"{scope}/flat")  # [B P R, N D]
    matrices = layer.matrices.reshape(children, types, side, side).transpose(0, 2, 1, 3)
    matrix = nodes.constant(f"{scope}/matrices", matrices.reshape(children * side, types * side))
    summed = nodes.add("MatMul", flat, matrix, name=f"{scope}/summed")
    by_row = nodes.reshape(summed, [-1, rows, types, side], f"{scope}/by_row")
    by_type = nodes.transpose(by_row, (0, 2, 1, 3), f"{scope}/by_type")
    center = nodes.reshape(by_type, [-1, types * POSE], f"{scope}/poses")
    if layer.offsets is None:
        return center
    offsets = nodes.constant(f"{scope}/offsets/all", np.tile(layer.offsets, types))
    shift = nodes.add("MatMul", by_parent, offsets, name=f"{scope}/offsets")
    return nodes.add("Add", center, shift, name=f"{scope}/with_offsets")


def add_mean(nodes: Nodes, layer: Layer, t: int) -> None:
    """A later mean m under its name, and beside it sum w d, k and e."""
    mean, weights = layer.means[t], layer.weights[t]
    first = nodes.add("MatMul", weights, layer.centered, name=f"{mean}/first_moment")
    share = nodes.reduce("ReduceSum", weights, 4, f"{mean}/share")
    kept = nodes.add("Mul", layer.means[0], share, name=f"{mean}/kept")
    nodes.add("Add", first, kept, name=mean)
    nodes.add("Sub", mean, layer.means[0], name=f"{mean}/shift")


def add_variance(nodes: Nodes, layer: Layer, t: int, node: onnx.NodeProto) -> None:
    """The variance about a later mean, [B, P, J, 1, H].

    Where one child has all the weight it is the difference of two equal numbers: rounding brings it below 0.
    """
    mean, out = layer.means[t], node.output[0]
    first, shift = f"{mean}/first_moment", f"{mean}/shift"
    second = nodes.add("MatMul", layer.weights[t], layer.squares[0], name=f"{out}/second_moment")
    twice = nodes.add("Add", first, first, name=f"{out}/twice")
    moved = nodes.add("Mul", shift, f"{mean}/share", name=f"{out}/moved")
    rest = nodes.add("Sub", twice, moved, name=f"{out}/rest")
    about_center = nodes.add("Mul", shift, rest, name=f"{out}/about_center")
    nodes.add("Relu", nodes.add("Sub", second, about_center, name=f"{out}/about_mean"), name=out)


def add_distances(nodes: Nodes, layer: Layer, t: int, node: onnx.NodeProto) -> None:
    """The squared distance of each vote to a later mean, in units of its precisions, [B, P, J, N, 1]."""
    precision, out = node.input[1], node.output[0]  # [B, P, J, H, 1]
    shift = f"{layer.means[t]}/shift"
    column = nodes.reshape(shift, [*layer.by_parent, POSE, 1], f"{out}/shift")
    weighted = nodes.add("Mul", precision, column, name=f"{out}/weighted")
    twice = nodes.add("Add", weighted, weighted, name=f"{out}/twice")
    squares = nodes.add("MatMul", layer.squares[0], precision, name=f"{out}/squares")
    products = nodes.add("MatMul", layer.centered, twice, name=f"{out}/products")
    apart = nodes.add("Sub", squares, products, name=f"{out}/apart")
    constant = nodes.add("MatMul", shift, weighted, name=f"{out}/constant")
    nodes.add("Add", apart, constant, name=out)
