"""EM routing for training on a CPU: votes, M-steps and E-steps of a parent while they are in the cache.

As array operations EM routing reads and writes the votes again and again, and does little but wait for
memory: they are 2.5 MiB an example in the first convolutional capsules of the 68K network. Here they are
made from their two factors, parent by parent, whenever they are wanted, and never stored; what is kept for
the way back are the assignments, in each iteration a sixteenth of their size. The gradients are those of
`em.EMRouting`, by hand. Numba compiles this once and keeps the result beside this file, or where
NUMBA_CACHE_DIR says.
"""

# B batch, P parent positions, J parent types, N children of a parent, C children in all, 16 pose elements, T
# iterations. Children lie last in memory, where they are many.
#
# For a parent and its children n, with their assignments R_n, activations a_n and votes v_n:
#     r_n = R_n a_n, total = sum r_n, w_n = r_n / (total + floor), mu = sum w_n v_n, d_n = v_n - mu,
#     var = sum w_n d_n^2 + floor, q = 1 / (2 var), logs = sum_h log(var_h) / 2,
#     z = lambda (budget - (16 beta_u + logs) total), log a = logsigmoid(z),
#     density_n = -logs - sum_h q_h d_nh^2, joint_n = log a + eta density_n,
#     and the next R_n is exp(joint_n) / sum over n's parents.
# The Gaussian's constant, (2 pi)^8, is left out of density_n: it cancels.
#
# Backwards, of_x is the gradient of the loss by x. For a parent, from the last iteration to the first, where
# R' are the assignments of the next one:
#     of_joint_n = R'_n (of_R'_n - sum over n's parents of R' of_R'), or 0 in the last,
#     of_density_n = eta of_joint_n,
#     of_budget = lambda (1 - a) of_log_a, of_beta_u = -16 total of_budget,
#     of_logs = -sum_n of_density_n - total of_budget,
#     of_var_h = q_h of_logs + 2 q_h^2 sum_n of_density_n d_nh^2,
#     of_d_nh = 2 d_nh (w_n of_var_h - q_h of_density_n), of_mu_h = of_mean_h - sum_n of_d_nh,
#     of_v_nh = of_d_nh + w_n of_mu_h, of_w_n = sum_h (of_var_h d_nh^2 + of_mu_h v_nh),
#     of_r_n = (of_w_n - sum_m w_m of_w_m) / (total + floor) - (16 beta_u + logs) of_budget,
#     of_R_n = a_n of_r_n, and a_n gets R_n of_r_n from every parent and iteration.
# In the last iteration of_log_a and of_mean are what comes in; before it they are sum_n of_joint_n and 0.

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

H = 16
LEAST = np.float32(-1e30)
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)
Array = NDArray[np.float32]
Result = TypeVar("Result")
# All of fast mathematics but nnan and ninf: NaN and infinity survive, so that a divergence is noticed. Sums
# may be taken in any order, but no loop both sums and stores: LLVM makes two of such a loop and chooses by
# the arrays' addresses, so that the same step would round differently from one run to the next.
KEEPS_NAN = {"nsz", "arcp", "contract", "afn", "reassoc"}
Function = TypeVar("Function", bound=Callable[..., Any])


def _jit(function: Function) -> Function:
    """Compile at the first call, or take what was compiled before."""
    compiler: Any = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=KEEPS_NAN)
    compiled: Function = compiler(function)
    return compiled


def route(
    poses: Tensor,
    activations: Tensor,
    matrices: Tensor,
    offsets: Tensor,
    child: Tensor,
    assignments: Tensor,
    beta_u: Tensor,
    budget: Tensor,
    inverse_temperatures: list[float],
    floors: tuple[float, float],
    density_exponent: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """EM routing of votes that are products of 4x4 poses and 4x4 matrices; all float32 on the CPU.

    Args:
        poses: of the children that each parent position sees, [B, P, 16, N].
        activations: of the same, [B, P, N].
        matrices: of each pair of child and parent type, [J, 16, N].
        offsets: added to every parent's votes, without a gradient, [16, N].
        child: the number of each among all children, position by position, int64 [P, N].
        assignments: the initial ones, [P, N], the same for all parent types.
        beta_u: cost of a child's element that is not explained, [J].
        budget: beta_a in nats: what a parent's costs are held against, [J].
        inverse_temperatures: lambda in each iteration, T of them.
        floors: of mass and variance.
        density_exponent: power of the Gaussian's density in the E-step.

    Returns:
        Means [B, P, J, 16] and log activations [B, P, J] of the parents.
    """
    means: Tensor
    log_activations: Tensor
    means, log_activations = _FusedEM.apply(
        poses,
        activations,
        matrices,
        beta_u,
        budget,
        offsets,
        child,
        assignments,
        inverse_temperatures,
        (*floors, density_exponent),
    )
    return means, log_activations


class _FusedEM(torch.autograd.Function):
    """`route`, with gradients by poses, activations, matrices, beta_u and budget."""

    @staticmethod
    def forward(
        ctx: Any,
        poses: Tensor,
        activations: Tensor,
        matrices: Tensor,
        beta_u: Tensor,
        budget: Tensor,
        offsets: Tensor,
        child: Tensor,
        assignments: Tensor,
        inverse_temperatures: list[float],
        settings: tuple[float, float, float],
    ) -> tuple[Tensor, Tensor]:
        factors = poses.contiguous(), activations.contiguous(), matrices.contiguous(), offsets, child
        ctx.constants = np.array(inverse_temperatures, np.float32), np.array(settings, np.float32)
        shape = len(inverse_temperatures), len(poses), len(child), len(matrices)  # T, B, P, J
        assigned = poses.new_empty((*shape, child.shape[1]))
        assigned[0] = assignments[:, None]
        means, variances = poses.new_empty((*shape, H)), poses.new_empty((*shape, H))
        log_activations = poses.new_empty(shape)
        filled = assigned, means, variances, log_activations
        arrays = _arrays(*factors, beta_u, budget, *filled)
        _in_threads(len(poses), lambda start, stop: _forward(start, stop, *ctx.constants, *arrays))
        ctx.save_for_backward(*factors, beta_u, *filled)
        return means[-1].clone(), log_activations[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_means: Tensor, of_log_activations: Tensor) -> tuple[Tensor | None, ...]:
        saved = _arrays(*ctx.saved_tensors)
        poses, activations, matrices = saved[:3]
        of_poses, of_activations = np.zeros_like(poses), np.zeros_like(activations)
        come_in = of_means.contiguous().numpy(), of_log_activations.contiguous().numpy().copy()

        def part(start: int, stop: int) -> tuple[Array, Array]:
            shared = np.zeros_like(matrices), np.zeros((2, len(matrices)), np.float32)
            gradients: tuple[Any, ...] = (*come_in, of_poses, of_activations, *shared)
            _backward(start, stop, *ctx.constants, *saved, *gradients)
            return shared

        of_matrices, of_betas = (sum(parts) for parts in zip(*_in_threads(len(poses), part), strict=True))
        found = of_poses, of_activations, of_matrices, *of_betas
        by_factors = (torch.from_numpy(np.asarray(gradient)) for gradient in found)
        return *by_factors, *[None] * 5  # the other arguments have none


def _arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """The same memory, for compiled functions."""
    return [tensor.detach().numpy() for tensor in tensors]


def _in_threads(examples: int, work: Callable[[int, int], Result]) -> list[Result]:
    """Let each of torch's threads work on its part of the examples, from start to stop."""
    count = max(min(torch.get_num_threads(), examples), 1)
    bounds = [examples * part // count for part in range(count + 1)]
    if count == 1:
        return [work(*bounds)]
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, bounds[:-1], bounds[1:]))


@_jit
def _votes(poses: Any, matrices: Any, offsets: Any, votes: Any) -> None:
    """Pose times matrix plus offset, for all children of a parent; all [16, N]."""
    side = 4
    for row in range(side):
        for column in range(side):
            h, first = side * row + column, side * row
            for n in range(votes.shape[1]):
                votes[h, n] = (
                    offsets[h, n]
                    + poses[first, n] * matrices[column, n]
                    + poses[first + 1, n] * matrices[side + column, n]
                    + poses[first + 2, n] * matrices[2 * side + column, n]
                    + poses[first + 3, n] * matrices[3 * side + column, n]
                )


@_jit
def _through_votes(of_votes: Any, poses: Any, matrices: Any, of_poses: Any, of_matrices: Any) -> None:
    """Add what the votes' gradients are for poses and matrices; all [16, N]."""
    side = 4
    for row in range(side):
        for m in range(side):
            first, below = side * row, side * m
            for n in range(of_votes.shape[1]):
                of_poses[first + m, n] += (
                    of_votes[first, n] * matrices[below, n]
                    + of_votes[first + 1, n] * matrices[below + 1, n]
                    + of_votes[first + 2, n] * matrices[below + 2, n]
                    + of_votes[first + 3, n] * matrices[below + 3, n]
                )
    for m in range(side):
        for column in range(side):
            for n in range(of_votes.shape[1]):
                of_matrices[side * m + column, n] += (
                    poses[m, n] * of_votes[column, n]
                    + poses[side + m, n] * of_votes[side + column, n]
                    + poses[2 * side + m, n] * of_votes[2 * side + column, n]
                    + poses[3 * side + m, n] * of_votes[3 * side + column, n]
                )


@_jit
def _fit(mass: Any, votes: Any, floors: Any, mean: Any, variance: Any) -> Any:
    """M-step: what a parent's Gaussian is, and the mass that is assigned to it."""
    total = ZERO
    for n in range(len(mass)):
        total += mass[n]
    inverse = ONE / (total + floors[0])
    for h in range(H):
        first = ZERO
        for n in range(len(mass)):
            first += mass[n] * votes[h, n]
        center = first * inverse
        second = ZERO
        for n in range(len(mass)):
            difference = votes[h, n] - center
            second += mass[n] * difference * difference
        mean[h] = center
        variance[h] = second * inverse + floors[1]
    return total


@_jit
def _half_logs(variance: Any) -> Any:
    """Half of the sum of the variances' logarithms."""
    logs = ZERO
    for h in range(H):
        logs += HALF * np.float32(math.log(variance[h]))
    return logs


@_jit
def _densities(votes: Any, mean: Any, variance: Any, exponent: Any, joint: Any) -> None:
    """Take from each child's logarithm its vote's squared distance in deviations, halved, times eta."""
    for h in range(H):
        center, precision = mean[h], exponent * HALF / variance[h]
        for n in range(len(joint)):
            difference = votes[h, n] - center
            joint[n] -= precision * difference * difference


@_jit
def _assign(joint: Any, child: Any, most: Any, sums: Any) -> None:
    """E-step: logarithms [P, J, N] to assignments, a softmax over all parents of a child."""
    most[:] = LEAST
    sums[:] = 0
    positions, types, children = joint.shape
    for p in range(positions):
        for j in range(types):
            for n in range(children):
                most[child[p, n]] = max(most[child[p, n]], joint[p, j, n])
    for p in range(positions):
        for j in range(types):
            for n in range(children):
                joint[p, j, n] = math.exp(joint[p, j, n] - most[child[p, n]])
            for n in range(children):
                sums[child[p, n]] += joint[p, j, n]
    for c in range(len(sums)):
        sums[c] = ONE / sums[c]
    for p in range(positions):
        for j in range(types):
            for n in range(children):
                joint[p, j, n] *= sums[child[p, n]]


@_jit
def _through_softmax(assigned: Any, gradient: Any, child: Any, dot: Any, of_log_activation: Any) -> None:
    """Back through the E-step, [P, J, N]: the gradients by R become those by joint, in place."""
    dot[:] = 0
    positions, types, children = assigned.shape
    for p in range(positions):
        for j in range(types):
            for n in range(children):
                dot[child[p, n]] += assigned[p, j, n] * gradient[p, j, n]
    for p in range(positions):
        for j in range(types):
            for n in range(children):
                gradient[p, j, n] = assigned[p, j, n] * (gradient[p, j, n] - dot[child[p, n]])
            total = ZERO
            for n in range(children):
                total += gradient[p, j, n]
            of_log_activation[p, j] = total


@_jit
def _through_gaussian(
    votes: Any,  # [16, N]
    weight: Any,  # w, [N]
    of_density: Any,  # [N]
    mean: Any,
    variance: Any,
    of_mean: Any,  # [16], what comes in besides
    of_logs: Any,  # of each element's log variance, halved, besides
    of_weight: Any,  # [N], filled
    of_votes: Any,  # [16, N], filled
) -> None:
    """Back through the M-step's mean and variance, and through the squared distances of the E-step."""
    of_weight[:] = 0
    for h in range(H):
        center, precision = mean[h], HALF / variance[h]
        through_density = ZERO
        for n in range(len(weight)):
            difference = votes[h, n] - center
            through_density += of_density[n] * difference * difference
        of_variance = precision * (2 * precision * through_density + of_logs)
        of_center = of_mean[h]
        for n in range(len(weight)):
            difference = votes[h, n] - center
            of_weight[n] += of_variance * difference * difference
            change = 2 * difference * (weight[n] * of_variance - of_density[n] * precision)
            of_votes[h, n] = change
        for n in range(len(weight)):
            of_center -= of_votes[h, n]
        for n in range(len(weight)):
            of_weight[n] += of_center * votes[h, n]
            of_votes[h, n] += of_center * weight[n]


@_jit
def _forward(  # arrays that a compiled function cannot take as one
    start: int,
    stop: int,
    inverse_temperatures: Any,  # [T], lambda
    settings: Any,  # floors of the mass and of the variance, eta
    poses: Any,  # [B, P, 16, N]
    activations: Any,  # [B, P, N]
    matrices: Any,  # [J, 16, N]
    offsets: Any,  # [16, N]
    child: Any,  # [P, N]
    beta_u: Any,  # [J]
    budget: Any,  # [J]
    assignments: Any,  # [T, B, P, J, N]: filled, but for the first, which holds the initial ones
    means: Any,  # [T, B, P, J, 16], filled
    variances: Any,  # [T, B, P, J, 16], filled
    log_activations: Any,  # [T, B, P, J], filled
) -> None:
    """Route some of the examples, and keep what the way back needs."""
    iterations, _, positions, types, children = assignments.shape
    votes, mass = np.empty((H, children), np.float32), np.empty(children, np.float32)
    count = child.max() + 1
    most, sums = np.empty(count, np.float32), np.empty(count, np.float32)
    for b in range(start, stop):
        for t in range(iterations):
            for p in range(positions):
                for j in range(types):
                    mean, variance = means[t, b, p, j], variances[t, b, p, j]
                    _votes(poses[b, p], matrices[j], offsets, votes)
                    for n in range(children):
                        mass[n] = assignments[t, b, p, j, n] * activations[b, p, n]
                    total = _fit(mass, votes, settings, mean, variance)
                    logs = _half_logs(variance)
                    z = inverse_temperatures[t] * (budget[j] - (H * beta_u[j] + logs) * total)
                    log_activation = min(z, ZERO) - np.float32(math.log1p(math.exp(-abs(z))))
                    log_activations[t, b, p, j] = log_activation
                    if t + 1 < iterations:
                        joint = assignments[t + 1, b, p, j]
                        joint[:] = log_activation - settings[2] * logs
                        _densities(votes, mean, variance, settings[2], joint)
            if t + 1 < iterations:
                _assign(assignments[t + 1, b], child, most, sums)


@_jit
def _backward(  # arrays that a compiled function cannot take as one
    start: int,
    stop: int,
    inverse_temperatures: Any,
    settings: Any,
    poses: Any,
    activations: Any,
    matrices: Any,
    offsets: Any,
    child: Any,
    beta_u: Any,
    assignments: Any,
    means: Any,
    variances: Any,
    log_activations: Any,
    of_means: Any,  # [B, P, J, 16], the gradients that come in
    of_log_activations: Any,  # [B, P, J], the same, overwritten
    of_poses: Any,  # [B, P, 16, N], added to
    of_activations: Any,  # [B, P, N], added to
    of_matrices: Any,  # [J, 16, N], added to
    of_betas: Any,  # [2, J], of beta_u and of the budget, added to
) -> None:
    """The gradients of some of the examples."""
    iterations, _, positions, types, children = assignments.shape
    votes, of_votes = np.empty((H, children), np.float32), np.empty((H, children), np.float32)
    weight, of_weight = np.empty(children, np.float32), np.empty(children, np.float32)
    nothing = np.zeros(H, np.float32)
    dot = np.empty(child.max() + 1, np.float32)
    # By the assignments that come next, or after _through_softmax by joint, and then by this iteration's.
    of_assignments = np.zeros((positions, types, children), np.float32)
    for b in range(start, stop):
        of_assignments[:] = 0
        for t in range(iterations - 1, -1, -1):
            last = t + 1 == iterations
            if not last:
                _through_softmax(assignments[t + 1, b], of_assignments, child, dot, of_log_activations[b])
            for p in range(positions):
                for j in range(types):
                    mean, variance = means[t, b, p, j], variances[t, b, p, j]
                    assigned, of_density = assignments[t, b, p, j], of_assignments[p, j]
                    _votes(poses[b, p], matrices[j], offsets, votes)
                    for n in range(children):
                        weight[n] = assigned[n] * activations[b, p, n]
                    for n in range(children):  # from the gradients by joint, in place
                        of_density[n] *= settings[2]
                    total, sum_of_density = ZERO, ZERO
                    for n in range(children):
                        total += weight[n]
                        sum_of_density += of_density[n]
                    inverse = ONE / (total + settings[0])
                    for n in range(children):
                        weight[n] *= inverse
                    one_minus_a = np.float32(-math.expm1(log_activations[t, b, p, j]))  # exact near a = 1
                    of_budget = inverse_temperatures[t] * of_log_activations[b, p, j] * one_minus_a
                    of_betas[0, j] -= of_budget * H * total
                    of_betas[1, j] += of_budget
                    of_total = -of_budget * (H * beta_u[j] + _half_logs(variance))
                    of_mean = of_means[b, p, j] if last else nothing
                    of_logs = -sum_of_density - of_budget * total
                    _through_gaussian(
                        votes, weight, of_density, mean, variance, of_mean, of_logs, of_weight, of_votes
                    )
                    mean_of_weight = ZERO
                    for n in range(children):
                        mean_of_weight += weight[n] * of_weight[n]
                    for n in range(children):
                        of_mass = (of_weight[n] - mean_of_weight) * inverse + of_total
                        of_activations[b, p, n] += of_mass * assigned[n]
                        of_assignments[p, j, n] = of_mass * activations[b, p, n]
                    _through_votes(of_votes, poses[b, p], matrices[j], of_poses[b, p], of_matrices[j])
