"""EM routing of 16 examples, compiled; `fused_em.py` has the mathematics."""

# L = 16 examples, one in each lane, C children in all, P parent positions, J parent types, N children of a
# parent, Q parent positions that a child reaches at most, 16 pose elements, T iterations

from typing import Any, NamedTuple

import numpy as np

from training.models.cpu.lanes import (
    ELEMENTS,
    compiled,
    dot,
    every,
    exp,
    kernel,
    larger,
    load,
    log,
    log_of_one_plus,
    no_pose,
    plus_product,
    store,
)

LEAST = -1e30  # below all logarithms; finite, so that nothing becomes NaN


class Settings(NamedTuple):
    """What is the same for all parents, float32.

    Attributes:
        mass_floor: added to a parent's mass before it divides.
        variance_floor: added to each variance.
        eta: power of the Gaussian's density in the E-step.
    """

    mass_floor: np.float32
    variance_floor: np.float32
    eta: np.float32


class Children(NamedTuple):
    """Poses [C, 16, L] and activations [C, L]."""

    poses: Any
    activations: Any


class Parents(NamedTuple):
    """What the layer has for its parents.

    Attributes:
        matrices: [J, N, 16].
        offsets: added to the votes, [N, 16, L].
        beta_u: cost of each element of a child that a parent explains, beside its distance, [J].
        budget: what the costs are held against, [J].
    """

    matrices: Any
    offsets: Any
    beta_u: Any
    budget: Any


class Wiring(NamedTuple):
    """Who sees whom.

    Attributes:
        child: the number of each child in a receptive field, [P, N].
        places: where a child is seen, as p * N + n, [C, Q].
        counts: in how many places, [C].
        shares: the first assignments, [P, N].
    """

    child: Any
    places: Any
    counts: Any
    shares: Any


class Kept(NamedTuple):
    """What the way back needs of each iteration.

    Attributes:
        assignments: those after the first iteration, [T - 1, P, J, N, L].
        means: mu, [T, P, J, 16, L].
        precisions: q, [T, P, J, 16, L].
        half_logs: logs, [T, P, J, L].
        totals: [T, P, J, L].
        complements: 1 - a, [T, P, J, L].
    """

    assignments: Any
    means: Any
    precisions: Any
    half_logs: Any
    totals: Any
    complements: Any


@kernel
def forward(
    inverse_temperatures: Any,  # [T], lambda
    settings: Settings,
    children: Children,
    parents: Parents,
    wiring: Wiring,
    kept: Kept,  # filled
    log_activations: Any,  # [P, J, L], filled: those of the last iteration
) -> None:
    """Route 16 examples, and keep what the way back needs."""
    poses, activations = children
    matrices, offsets, beta_u, budget = parents
    child, places, counts, shares = wiring
    assignments, means, precisions, half_logs, totals, complements = kept
    iterations, positions, types = len(means), len(child), len(matrices)
    mass = np.empty((child.shape[1], poses.shape[2]), np.float32)
    for t in range(iterations):
        for p in range(positions):
            for j in range(types):
                total = assigned_mass(t, p, j, shares, assignments, activations, child[p], mass)
                mean, precision = means[t, p, j], precisions[t, p, j]
                logs = m_step(settings, poses, matrices[j], offsets, child[p], mass, total, mean, precision)
                cost = (every(ELEMENTS * beta_u[j]) + logs) * total
                z = every(inverse_temperatures[t]) * (every(budget[j]) - cost)
                log_activation = log_sigmoid(z)
                store(half_logs[t, p, j], logs)
                store(totals[t, p, j], total)
                store(complements[t, p, j], exp(log_activation - z))  # exact where a is near 1
                store(log_activations[p, j], log_activation)
                if t + 1 < iterations:
                    eta, joint = every(settings.eta), assignments[t, p, j]
                    at_mean = log_activation - eta * logs
                    log_joints(poses, matrices[j], offsets, child[p], mean, precision, eta, at_mean, joint)
        if t + 1 < iterations:
            for c in range(len(poses)):
                e_step(places[c, : counts[c]], assignments[t])


@compiled
def assigned(t: Any, p: Any, j: Any, n: Any, shares: Any, assignments: Any) -> Any:
    """R of one child in an iteration."""
    return every(shares[p, n]) if t == 0 else load(assignments[t - 1, p, j, n])


@compiled
def assigned_mass(
    t: Any, p: Any, j: Any, shares: Any, assignments: Any, activations: Any, child: Any, mass: Any
) -> Any:
    """Fill in r of each child, its activation times its share in this parent, [N, L]; their sum."""
    total = every(0)
    for n in range(len(mass)):
        child_mass = assigned(t, p, j, n, shares, assignments) * load(activations[child[n]])
        store(mass[n], child_mass)
        total += child_mass
    return total


@compiled
def m_step(
    settings: Settings,
    poses: Any,
    matrices: Any,  # [N, 16]
    offsets: Any,
    child: Any,  # [N]
    mass: Any,  # [N, L]
    total: Any,
    mean: Any,  # [16, L], filled
    precision: Any,  # [16, L], filled
) -> Any:
    """Fill in a parent's Gaussian; half of the sum of its variances' logarithms."""
    inverse = every(1) / (total + every(settings.mass_floor))
    first, second = no_pose(), no_pose()
    for n in range(len(mass)):
        first += load(mass[n]) * plus_product(load(offsets[n]), load(poses[child[n]]), matrices[n])
    center = first * inverse
    for n in range(len(mass)):
        difference = plus_product(load(offsets[n]) - center, load(poses[child[n]]), matrices[n])
        second += load(mass[n]) * difference * difference
    store(mean, center)
    store(precision, second * inverse + every(settings.variance_floor))
    logs = every(0)
    for h in range(ELEMENTS):
        variance = load(precision[h])
        logs += every(0.5) * log(variance)
        store(precision[h], every(0.5) / variance)
    return logs


@compiled
def log_sigmoid(z: Any) -> Any:
    """Of Lanes, exact where the sigmoid is near 1."""
    minus = every(0) - z
    return every(0) - larger(every(0), minus) - log_of_one_plus(exp(every(0) - larger(z, minus)))


@compiled
def log_joints(
    poses: Any,
    matrices: Any,
    offsets: Any,
    child: Any,
    mean: Any,
    precision: Any,
    eta: Any,
    at_mean: Any,
    joint: Any,  # [N, L], filled
) -> None:
    """Fill in log(a density^eta) of each child's vote; for a vote at the mean it is `at_mean`."""
    center, weights = load(mean), eta * load(precision)
    for n in range(len(joint)):
        difference = plus_product(load(offsets[n]) - center, load(poses[child[n]]), matrices[n])
        store(joint[n], at_mean - dot(weights * difference, difference))


@compiled
def e_step(places: Any, joint: Any) -> None:
    """A child's logarithms in [P, J, N, L] become its assignments, by a softmax over all its parents."""
    types, children = joint.shape[1:3]
    most, total = every(LEAST), every(0)
    for place in places:
        p, n = divmod(place, children)
        for j in range(types):
            most = larger(most, load(joint[p, j, n]))
    for place in places:
        p, n = divmod(place, children)
        for j in range(types):
            share = exp(load(joint[p, j, n]) - most)
            store(joint[p, j, n], share)
            total += share
    inverse = every(1) / total
    for place in places:
        p, n = divmod(place, children)
        for j in range(types):
            store(joint[p, j, n], inverse * load(joint[p, j, n]))
