"""The gradients of EM routing of 16 examples, compiled; `fused_em.py` has the mathematics."""

# letters as in `em_forward.py`

from typing import Any, NamedTuple

import numpy as np

from training.models.cpu.em_forward import Children, Kept, Parents, Settings, Wiring, assigned
from training.models.cpu.lanes import (
    ELEMENTS,
    compiled,
    dot,
    every,
    kernel,
    load,
    no_pose,
    plus_product,
    plus_product_with_transposed,
    product_of_transposed,
    store,
    sums_over_lanes,
)


class Gradients(NamedTuple):
    """What comes out, all added to.

    Attributes:
        poses: [C, 16, L].
        activations: [C, L].
        matrices: [J, N, 16].
        betas: of beta_u and of the budget, [2, J, L].
    """

    poses: Any
    activations: Any
    matrices: Any
    betas: Any


@kernel
def backward(
    inverse_temperatures: Any,
    settings: Settings,
    children: Children,
    parents: Parents,
    wiring: Wiring,
    kept: Kept,
    grad_means: Any,  # [P, J, 16, L], of the last iteration: they come in
    grad_log_activations: Any,  # [P, J, L], the same
    grad_r: Any,  # [P, J, N, L], room to work in
    gradients: Gradients,
) -> None:
    """The gradients of 16 examples."""
    poses, activations = children
    matrices, offsets, beta_u = parents.matrices, parents.offsets, parents.beta_u
    child, shares = wiring.child, wiring.shares
    assignments, means, precisions, half_logs, totals, complements = kept
    grad_poses, grad_activations, grad_matrices, grad_betas = gradients
    iterations, positions, types = len(means), len(child), len(matrices)
    grad_votes = np.empty((grad_r.shape[2], *means.shape[3:]), np.float32)
    grad_density = np.zeros(grad_r.shape[2:], np.float32)  # in the last iteration it is 0
    # Sums over a child's parents of R grad_r, in this iteration and in the next one.
    now, later = np.zeros_like(activations), np.zeros_like(activations)
    for t in range(iterations - 1, -1, -1):
        now[:] = 0
        for p in range(positions):
            for j in range(types):
                mean, precision = load(means[t, p, j]), load(precisions[t, p, j])
                if t + 1 < iterations:
                    seen, matrix, exponent = child[p], matrices[j], every(settings.eta)
                    grad_log_activation = through_softmax(
                        assignments[t, p, j], activations, seen, grad_r[p, j], later, exponent, grad_density
                    )
                    sum_of_density, grad_mean = exponent * grad_log_activation, no_pose()
                    first, second = moments(poses, matrix, offsets, seen, mean, grad_density)
                else:
                    grad_log_activation, grad_mean = load(grad_log_activations[p, j]), load(grad_means[p, j])
                    sum_of_density, first, second = every(0), no_pose(), no_pose()
                total = load(totals[t, p, j])
                grad_budget = (
                    every(inverse_temperatures[t]) * load(complements[t, p, j]) * grad_log_activation
                )
                store(grad_betas[0, j], load(grad_betas[0, j]) - every(ELEMENTS) * total * grad_budget)
                store(grad_betas[1, j], load(grad_betas[1, j]) + grad_budget)
                grad_logs = every(0) - sum_of_density - total * grad_budget
                grad_total = every(0) - (every(ELEMENTS * beta_u[j]) + load(half_logs[t, p, j])) * grad_budget
                inverse = every(1) / (total + every(settings.mass_floor))
                grad_variance = precision * (every(2) * precision * second + grad_logs)
                grad_mean += every(2) * precision * first
                grad_mean -= every(2) * grad_variance * mean * (every(settings.mass_floor) * inverse)
                spread = every(0.5) / precision - every(settings.variance_floor)
                grad_total -= inverse * dot(grad_variance, spread)
                for n in range(len(grad_density)):
                    c = child[p, n]
                    share = assigned(t, p, j, n, shares, assignments)
                    weight = share * load(activations[c]) * inverse
                    difference = plus_product(load(offsets[n]) - mean, load(poses[c]), matrices[j, n])
                    change = grad_variance * difference + grad_mean
                    grad_mass = grad_total + inverse * dot(difference, change)
                    grad_vote = weight * (every(2) * change - grad_mean)
                    grad_vote -= every(2) * load(grad_density[n]) * precision * difference
                    store(grad_r[p, j, n], grad_mass)
                    store(now[c], load(now[c]) + share * grad_mass)
                    store(grad_votes[n], grad_vote)
                through_votes(grad_votes, poses, matrices[j], child[p], grad_poses, grad_matrices[j])
        grad_activations += now
        now, later = later, now


@compiled
def through_softmax(
    assignments: Any,  # [N, L], R of the next iteration
    activations: Any,
    child: Any,  # [N]
    grad_r: Any,  # [N, L], in the next iteration
    later: Any,  # [C, L], in the next iteration
    exponent: Any,
    grad_density: Any,  # [N, L], filled
) -> Any:
    """Back through the E-step, for one parent; the gradient by its log activation."""
    grad_log_activation = every(0)
    for n in range(len(grad_r)):
        c = child[n]
        grad_joint = load(assignments[n]) * load(activations[c]) * (load(grad_r[n]) - load(later[c]))
        store(grad_density[n], exponent * grad_joint)
        grad_log_activation += grad_joint
    return grad_log_activation


@compiled
def moments(poses: Any, matrices: Any, offsets: Any, child: Any, mean: Any, grad_density: Any) -> Any:
    """Sums over children of grad_density times difference, and times its square."""
    first, second = no_pose(), no_pose()
    for n in range(len(grad_density)):
        difference = plus_product(load(offsets[n]) - mean, load(poses[child[n]]), matrices[n])
        weighted = load(grad_density[n]) * difference
        first += weighted
        second += weighted * difference
    return first, second


@compiled
def through_votes(
    grad_votes: Any, poses: Any, matrices: Any, child: Any, grad_poses: Any, grad_matrices: Any
) -> None:
    """Add what the votes' gradients, [N, 16, L], are for a parent's matrices and its children's poses."""
    for n in range(len(grad_votes)):
        grad_vote, grad_pose = load(grad_votes[n]), grad_poses[child[n]]
        store(grad_pose, plus_product_with_transposed(load(grad_pose), grad_vote, matrices[n]))
        grad_matrix = product_of_transposed(load(poses[child[n]]), grad_vote)
        store(grad_matrices[n], load(grad_matrices[n]) + sums_over_lanes(grad_matrix))
