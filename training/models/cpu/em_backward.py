"""The gradients of EM routing of 16 examples, compiled; `fused_em.py` has the mathematics."""

# letters as in `em_forward.py`

from typing import Any

import numpy as np

from training.models.cpu.em_forward import Settings, assigned
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


@kernel
def backward(  # arrays that a compiled function cannot take as one
    inverse_temperatures: Any,
    settings: Settings,
    poses: Any,
    activations: Any,
    matrices: Any,
    offsets: Any,
    child: Any,
    shares: Any,
    beta_u: Any,
    assignments: Any,
    means: Any,
    precisions: Any,
    half_logs: Any,
    totals: Any,
    complements: Any,
    of_means: Any,  # [P, J, 16, L], the gradients that come in
    of_log_activations: Any,  # [P, J, L], the same
    of_r: Any,  # [P, J, N, L], room to work in
    of_poses: Any,  # [C, 16, L], added to
    of_activations: Any,  # [C, L], added to
    of_matrices: Any,  # [J, N, 16], added to
    of_betas: Any,  # [2, J, L], of beta_u and of the budget, added to
) -> None:
    """The gradients of 16 examples."""
    iterations, positions, types = len(means), len(child), len(matrices)
    of_votes = np.empty((of_r.shape[2], *means.shape[3:]), np.float32)
    of_density = np.zeros(of_r.shape[2:], np.float32)  # in the last iteration it is 0
    # Sums over a child's parents of R of_r, in this iteration and in the next one.
    now, later = np.zeros_like(activations), np.zeros_like(activations)
    for t in range(iterations - 1, -1, -1):
        now[:] = 0
        for p in range(positions):
            for j in range(types):
                mean, precision = load(means[t, p, j]), load(precisions[t, p, j])
                if t + 1 < iterations:
                    seen, matrix, exponent = child[p], matrices[j], every(settings.eta)
                    of_log_activation = through_softmax(
                        assignments[t, p, j], activations, seen, of_r[p, j], later, exponent, of_density
                    )
                    sum_of_density, of_mean = exponent * of_log_activation, no_pose()
                    first, second = moments(poses, matrix, offsets, seen, mean, of_density)
                else:
                    of_log_activation, of_mean = load(of_log_activations[p, j]), load(of_means[p, j])
                    sum_of_density, first, second = every(0), no_pose(), no_pose()
                total = load(totals[t, p, j])
                of_budget = every(inverse_temperatures[t]) * load(complements[t, p, j]) * of_log_activation
                store(of_betas[0, j], load(of_betas[0, j]) - every(ELEMENTS) * total * of_budget)
                store(of_betas[1, j], load(of_betas[1, j]) + of_budget)
                of_logs = every(0) - sum_of_density - total * of_budget
                of_total = every(0) - (every(ELEMENTS * beta_u[j]) + load(half_logs[t, p, j])) * of_budget
                inverse = every(1) / (total + every(settings.mass_floor))
                of_variance = precision * (every(2) * precision * second + of_logs)
                of_mean += every(2) * precision * first
                of_mean -= every(2) * of_variance * mean * (every(settings.mass_floor) * inverse)
                spread = every(0.5) / precision - every(settings.variance_floor)
                of_total -= inverse * dot(of_variance, spread)
                for n in range(len(of_density)):
                    c = child[p, n]
                    share = assigned(t, p, j, n, shares, assignments)
                    weight = share * load(activations[c]) * inverse
                    difference = plus_product(load(offsets[n]) - mean, load(poses[c]), matrices[j, n])
                    change = of_variance * difference + of_mean
                    of_mass = of_total + inverse * dot(difference, change)
                    of_vote = weight * (every(2) * change - of_mean)
                    of_vote -= every(2) * load(of_density[n]) * precision * difference
                    store(of_r[p, j, n], of_mass)
                    store(now[c], load(now[c]) + share * of_mass)
                    store(of_votes[n], of_vote)
                through_votes(of_votes, poses, matrices[j], child[p], of_poses, of_matrices[j])
        of_activations += now
        now, later = later, now


@compiled
def through_softmax(
    assignments: Any,  # [N, L], R of the next iteration
    activations: Any,
    child: Any,  # [N]
    of_r: Any,  # [N, L], in the next iteration
    later: Any,  # [C, L], in the next iteration
    exponent: Any,
    of_density: Any,  # [N, L], filled
) -> Any:
    """Back through the E-step, for one parent; the gradient by its log activation."""
    of_log_activation = every(0)
    for n in range(len(of_r)):
        c = child[n]
        of_joint = load(assignments[n]) * load(activations[c]) * (load(of_r[n]) - load(later[c]))
        store(of_density[n], exponent * of_joint)
        of_log_activation += of_joint
    return of_log_activation


@compiled
def moments(poses: Any, matrices: Any, offsets: Any, child: Any, mean: Any, of_density: Any) -> Any:
    """Sums over children of of_density times difference, and times its square."""
    first, second = no_pose(), no_pose()
    for n in range(len(of_density)):
        difference = plus_product(load(offsets[n]) - mean, load(poses[child[n]]), matrices[n])
        weighted = load(of_density[n]) * difference
        first += weighted
        second += weighted * difference
    return first, second


@compiled
def through_votes(
    of_votes: Any, poses: Any, matrices: Any, child: Any, of_poses: Any, of_matrices: Any
) -> None:
    """Add what the votes' gradients, [N, 16, L], are for a parent's matrices and its children's poses."""
    for n in range(len(of_votes)):
        of_vote, of_pose = load(of_votes[n]), of_poses[child[n]]
        store(of_pose, plus_product_with_transposed(load(of_pose), of_vote, matrices[n]))
        of_matrix = product_of_transposed(load(poses[child[n]]), of_vote)
        store(of_matrices[n], load(of_matrices[n]) + sums_over_lanes(of_matrix))
