"""Routing by agreement with the batch as the last axis, and without holding the predictions.

The predictions u_hat_ij = W_ij u_i are the largest tensor of a capsule network, and routing as it is written
down (Procedure 1 of Sabour et al. 2017) passes over them five times. They are needed only in sums, and both
sums can be taken on the other side of the weights:

    s_j    = sum over i of c_ij u_hat_ij  =  sum over i of W_ij (c_ij u_i)
    a_ij   = u_hat_ij . v_j               =  u_i . (W_ij^T v_j)

The first is for each j a matrix product of all its weights with the coupled capsules; the second one with the
pose v_j, then an inner product over the few elements of a primary capsule's pose. With the batch as the last
axis the weights stand on the left of each product, one constant for the whole batch, and nothing is copied.

Agreements add up linearly, so the logits of iteration r are the agreement with v_1 + ... + v_(r-1).
"""

# B images, J classes, D pose of a class, K primary capsules times their pose elements
# G groups of neighboring primary capsules, E pose of a primary capsule, R the other capsules of a group:
# u is [G, E, R, B], so that a pose's elements are summed over whole rows of memory. K = G E R.

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.contract.architecture import SQUASH_EPSILON
from export.optimize.nodes import Nodes

Floats = NDArray[np.float32]
# exp of a logit up to here, summed over the classes, is a normal float32; its inverse as well.
SAFE_LOGIT = 80.0


@dataclass(frozen=True)
class Routing:
    """Weights and numbers of the class capsules.

    Attributes:
        votes: W, [G, E, R, J, D].
        iterations: at least 1.
        none_of_the_above: the softmax has one more logit, always 0.
        priors: initial logits, [J, G, 1, R, 1], or None for 0.
        bias: added to s, [J, D, 1], or None for 0.
    """

    votes: Floats
    iterations: int
    none_of_the_above: bool
    priors: Floats | None
    bias: Floats | None

    @property
    def largest_logit(self) -> float:
        """No logit is larger, whatever the image: |u| < 1, |v| < 1, so an agreement is below |W_ij|."""
        norm = float(np.sqrt(np.square(self.votes, dtype=np.float64).sum(axis=(1, 4)).max()))
        priors = 0.0 if self.priors is None else float(np.abs(self.priors).max())
        return priors + (self.iterations - 1) * norm


def add_squash(nodes: Nodes, value: str, axis: int, name: str) -> str:
    """|s|^2 / (1 + |s|^2) s / |s| (Eq. 1) along an axis."""
    squared = nodes.reduce("ReduceSumSquare", value, axis, f"{name}/squared")
    above_zero = _plus(nodes, squared, SQUASH_EPSILON, f"{name}/epsilon")
    length = nodes.add("Sqrt", above_zero, name=f"{name}/length")
    shrunk = nodes.add("Div", squared, _plus(nodes, squared, 1.0, f"{name}/one"), name=f"{name}/shrunk")
    scale = nodes.add("Div", shrunk, length, name=f"{name}/scale")
    return nodes.add("Mul", value, scale, name=name)


def add_routing(nodes: Nodes, u: str, routing: Routing, scope: str) -> str:
    """Add nodes that take primary capsules u, [G, E, R, B], to class capsules v, [J, D, B].

    Args:
        nodes: where to add them.
        u: the value's name.
        routing: weights and numbers.
        scope: what the names of the new values begin with.
    """
    groups, pose, rest, classes, class_pose = routing.votes.shape
    flat = groups * pose * rest
    by_class = routing.votes.reshape(flat, classes, class_pose)
    to_classes = nodes.constant(f"{scope}/to_classes", by_class.transpose(1, 2, 0))  # [J, D, K]
    to_capsules = ""
    if routing.iterations > 1:
        to_capsules = nodes.constant(f"{scope}/to_capsules", by_class.transpose(1, 0, 2))  # [J, K, D]
    poses = ""  # v_1 + ... + v_(r-1)
    for r in range(1, routing.iterations + 1):
        if r == 1:
            s = _first_sum(nodes, u, to_classes, routing, scope)
        else:
            logits = _agreement(nodes, u, to_capsules, poses, routing, f"{scope}/b_{r}")
            c = _couple(nodes, logits, routing, f"{scope}/c_{r}")
            coupled = nodes.add("Mul", c, u, name=f"{scope}/c_{r}_u")  # [J, G, E, R, B]
            rows = nodes.reshape(coupled, [classes, flat, -1], f"{scope}/c_{r}_u/rows")
            s = nodes.add("MatMul", to_classes, rows, name=f"{scope}/s_{r}")  # [J, D, B]
        if routing.bias is not None:
            s = nodes.add(
                "Add", s, nodes.constant(f"{scope}/bias_{r}", routing.bias), name=f"{scope}/biased_{r}"
            )
        v = add_squash(nodes, s, 1, f"{scope}/v_{r}")
        if r < routing.iterations:
            poses = v if r == 1 else nodes.add("Add", poses, v, name=f"{scope}/v_1_to_{r}")
    return v


def _first_sum(nodes: Nodes, u: str, to_classes: str, routing: Routing, scope: str) -> str:
    """s_1: the coupling coefficients are constants yet."""
    groups, pose, rest, classes, _ = routing.votes.shape
    if routing.priors is None:
        rows = nodes.reshape(u, [groups * pose * rest, -1], f"{scope}/u/rows")
        total = nodes.add("MatMul", to_classes, rows, name=f"{scope}/sum_1")
        share = nodes.number(f"{scope}/c_1", 1 / (classes + routing.none_of_the_above))
        return nodes.add("Mul", total, share, name=f"{scope}/s_1")
    priors = routing.priors.astype(np.float64)
    largest = priors.max(axis=0, initial=0 if routing.none_of_the_above else -np.inf)
    e, none = np.exp(priors - largest), np.exp(-largest) if routing.none_of_the_above else 0
    c = nodes.constant(f"{scope}/c_1", e / (e.sum(axis=0) + none))
    coupled = nodes.add("Mul", c, u, name=f"{scope}/c_1_u")
    rows = nodes.reshape(coupled, [classes, groups * pose * rest, -1], f"{scope}/c_1_u/rows")
    return nodes.add("MatMul", to_classes, rows, name=f"{scope}/s_1")


def _agreement(nodes: Nodes, u: str, to_capsules: str, poses: str, routing: Routing, name: str) -> str:
    """Logits, [J, G, 1, R, B]: u . (W^T v) for the sum v of all poses so far, and the priors."""
    groups, pose, rest, classes, _ = routing.votes.shape
    back = nodes.add("MatMul", to_capsules, poses, name=f"{name}/back")  # [J, K, B]
    parted = nodes.reshape(back, [classes, groups, pose, rest, -1], f"{name}/back/parted")
    agreeing = nodes.add("Mul", parted, u, name=f"{name}/agreeing")
    if routing.priors is None:
        return nodes.reduce("ReduceSum", agreeing, 2, name)
    agreement = nodes.reduce("ReduceSum", agreeing, 2, f"{name}/agreement")
    return nodes.add("Add", agreement, nodes.constant(f"{name}/priors", routing.priors), name=name)


def _couple(nodes: Nodes, logits: str, routing: Routing, name: str) -> str:
    """Softmax over the classes (Eq. 3), [J, G, 1, R, B]; the sum over them is a product with ones."""
    groups, _, rest, classes, _ = routing.votes.shape
    none = ""  # exp of its logit, where there is none-of-the-above
    if routing.largest_logit > SAFE_LOGIT:
        largest = nodes.reduce("ReduceMax", logits, 0, f"{name}/largest")
        if routing.none_of_the_above:  # its logit 0 takes part
            largest = nodes.add("Relu", largest, name=f"{name}/largest_of_all")
            less = nodes.add("Neg", largest, name=f"{name}/less")
            none = nodes.add("Exp", less, name=f"{name}/none")
            none = nodes.reshape(none, [1, -1], f"{name}/none/row")
        logits = nodes.add("Sub", logits, largest, name=f"{name}/shifted")
    elif routing.none_of_the_above:
        none = nodes.number(f"{name}/none", 1.0)
    e = nodes.add("Exp", logits, name=f"{name}/exp")
    rows = nodes.reshape(e, [classes, -1], f"{name}/exp/rows")
    total = nodes.matmul(f"{name}/sum", np.ones((classes, classes)), rows)  # the same in every row
    if none:
        total = nodes.add("Add", total, none, name=f"{name}/sum_with_none")
    total = nodes.reshape(total, [classes, groups, 1, rest, -1], f"{name}/sum/parted")
    return nodes.add("Div", e, total, name=name)


def _plus(nodes: Nodes, value: str, number: float, name: str) -> str:
    return nodes.add("Add", value, nodes.number(f"{name}/number", number), name=name)
