"""From the outputs of an explain graph to what a person looks at: maps, entropies, changes, histograms."""

# T iterations, J classes, D numbers of a pose, K types of the capsules that vote for the classes, at R x R
# positions, B bins

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from export.contract.receptive_fields import Grid, capsule_grids

Floats = NDArray[np.float32]

BINS = 40  # of the distances of votes, from 0 to the largest
SMALLEST = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Layer:
    """A convolutional layer of matrix capsules.

    Attributes:
        name: such as `conv_caps.0`.
        grid: its capsules' places.
        entropy: of the assignments to them, see `Explanation`, [T].
        activations: of each capsule, [T, types, R, R].
        distances: of the votes for each capsule from its mean, weighted by assignment, [T, types, R, R].
    """

    name: str
    grid: Grid
    entropy: Floats
    activations: Floats
    distances: Floats


@dataclass(frozen=True)
class Explanation:
    """How routing came to its answer for one image.

    Attributes:
        routing: by agreement (Sabour et al. 2017), or by EM (Hinton et al. 2018).
        grid: places of the capsules that vote for the classes.
        entropy: of the coupling coefficients, or the assignments, as a share of the largest: 1 where each
            capsule votes for all classes alike; mean over the capsules, weighted by their activity, [T].
        probabilities: of the classes, after each iteration, [T, J].
        poses: the same, [T, J, D].
        heat: where each class gets its votes, summed over types, [T, J, R, R]. By agreement: the part of
            |s_j| that comes from there, with its sign. By EM: assignment times activation.
        logit_change: what an iteration adds to the logits, mean over capsules by activity, [T, J].
        largest_logit_change: the same of the capsule that agrees most, [T, J].
        distance_edges: of the bins, [B + 1].
        distances: share of the votes for each class in each bin of distance to its mean, weighted by
            assignment (Fig. 2 of Hinton et al. 2018), [T, J, B].
        layers: the convolutional capsule layers, in order.
    """

    routing: Literal["agreement", "em"]
    grid: Grid
    entropy: Floats
    probabilities: Floats
    poses: Floats
    heat: Floats
    logit_change: Floats | None = None
    largest_logit_change: Floats | None = None
    distance_edges: Floats | None = None
    distances: Floats | None = None
    layers: tuple[Layer, ...] = ()


def explanation(outputs: Mapping[str, Floats], manifest: Manifest) -> Explanation:
    """What the explain graph's outputs for one image, without the batch axis, say (`explain_outputs`)."""
    grids = capsule_grids(manifest)
    grid = list(grids.values())[-1]
    answer: dict[str, Any] = {
        "grid": grid,
        "probabilities": outputs["activations"],
        "poses": outputs["capsules"],
    }
    if manifest.architecture == "capsnet":
        has_none = bool(manifest.parameters.get("none_of_the_above"))
        return Explanation("agreement", **answer, **_of_agreement(outputs, has_none=has_none))
    layers = tuple(
        Layer(name, of, *(outputs[f"{name}.{what}"] for what in ("entropy", "activations", "distances")))
        for name, of in grids.items()
    )
    return Explanation("em", **answer, **_of_em(outputs), layers=layers)


def _of_agreement(outputs: Mapping[str, Floats], *, has_none: bool) -> dict[str, Any]:
    """The fields of routing by agreement.

    v has the direction of s, so |s_j| is the sum over the capsules of c_ij u_hat_ij . v_j / |v_j|: each has
    its part in the length, positive if it agrees. The coupling coefficients alone say little: in a trained
    network they are nearly alike, and the primary capsules of an empty background are active, too.
    """
    couplings, agreements = outputs["couplings"], outputs["agreements"]
    activities = np.maximum(outputs["activities"], SMALLEST)  # weights, of which one is above 0
    lengths = np.maximum(outputs["activations"], SMALLEST)[..., None, None, None]
    return {
        "entropy": _entropy(couplings, activities, has_none=has_none),
        "heat": (couplings * agreements / lengths).sum(axis=2),
        "logit_change": np.average(
            agreements, axis=(2, 3, 4), weights=np.broadcast_to(activities, agreements.shape)
        ),
        "largest_logit_change": agreements.max(axis=(2, 3, 4)),
    }


def _of_em(outputs: Mapping[str, Floats]) -> dict[str, Any]:
    """The fields of EM routing."""
    assignments, activities = outputs["assignments"], outputs["activities"]
    edges, distances = _histograms(outputs["distances"], assignments)
    return {
        "entropy": _entropy(assignments, activities, has_none=False),
        "heat": (assignments * activities).sum(axis=2),  # as the M-step weighs votes
        "distance_edges": edges,
        "distances": distances,
    }


def _entropy(shares: Floats, activities: Floats, *, has_none: bool) -> Floats:
    """Of shares [T, J, K, R, R] over the classes, as a share of the largest, [T]."""
    if has_none:
        rest = np.maximum(1 - shares.sum(axis=1, keepdims=True), 0)
        shares = np.concatenate([shares, rest], axis=1)
    summands = -shares * np.log(np.maximum(shares, SMALLEST))
    of_each = summands.sum(axis=1) / np.log(max(shares.shape[1], 2))  # [T, K, R, R]
    weights = np.broadcast_to(np.maximum(activities, SMALLEST), of_each.shape)
    return np.average(of_each, axis=(1, 2, 3), weights=weights).astype(np.float32)


def _histograms(distances: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Edges [B + 1] and shares [T, J, B] of distances [T, J, K, R, R], each row of which sums to 1."""
    edges = np.linspace(0, max(float(distances.max()), 1e-6), BINS + 1)
    iterations, classes = distances.shape[:2]
    counts = np.zeros((iterations, classes, BINS), np.float32)
    for t, j in np.ndindex(iterations, classes):
        counts[t, j], _ = np.histogram(distances[t, j], edges, weights=weights[t, j])
    total = np.maximum(counts.sum(axis=2, keepdims=True), SMALLEST)
    return edges.astype(np.float32), counts / total
