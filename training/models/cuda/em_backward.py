"""EM routing in Triton, backward: for each parent, each matrix and each child; `fused_em.py` calls them.

The gradients are derived in `../cpu/fused_em.py`. As forward, one program sums in a fixed order.
"""

# letters and names as in `em_tiles.py`

import triton
import triton.language as tl

from training.models.cuda.em_tiles import (
    each_child,
    each_element,
    each_example,
    kernel,
    load_votes,
    over_elements,
    product_of_transposed,
    product_with_transposed,
)


@kernel
def gradients_of_parent(
    poses,
    activations,
    matrices,
    offsets,
    child,
    beta_u,
    inverse_temperature,
    means,
    precisions,
    half_logs,
    totals,
    complements,
    next_shares,  # [P, J, N, B]: R of the next iteration
    later,  # [C, B], in the next iteration the sum over a child's parents of R of_r
    of_r,  # [P, J, N, B], in the next iteration; filled with of_joint, but in the last iteration
    of_mean_given,  # [P, J, 16, B], of the last iteration
    of_log_activation_given,  # [P, J, B], of the same
    of_means,  # [P, J, 16, B], filled
    of_variances,  # [P, J, 16, B], filled
    of_totals,  # [P, J, B], filled
    of_budgets,  # [P, J, B], filled
    batch,
    types,
    children,
    mass_floor,
    variance_floor,
    eta,
    is_last: tl.constexpr,
    child_tile: tl.constexpr,
    example_tile: tl.constexpr,
):
    """Of one parent in some examples: back through its children's E-step, its activation and its Gaussian.

    `of_totals` is the part of of_r that all children have in common: of the total in the parent's cost, and
    of the variance less its floor.
    """
    parent = tl.program_id(0).to(tl.int64)
    p, j = parent // types, parent % types
    b, h = each_example(tl.program_id(1), example_tile), each_element()
    here, of_elements = parent * batch + b, (parent * 16 + h) * batch + b
    mean = tl.load(means + of_elements, mask=b < batch, other=0.0)
    precision = tl.load(precisions + of_elements, mask=b < batch, other=1.0)
    total = tl.load(totals + here, mask=b < batch, other=0.0)

    if is_last:
        of_mean = tl.load(of_mean_given + of_elements, mask=b < batch, other=0.0)
        of_variance = tl.zeros([4, 4, 1, example_tile], tl.float32)
        of_log_activation = tl.load(of_log_activation_given + here, mask=b < batch, other=0.0)
        sum_of_density = tl.zeros([1, 1, 1, example_tile], tl.float32)
    else:
        sum_of_joint = tl.zeros([1, 1, child_tile, example_tile], tl.float32)
        first = tl.zeros([4, 4, child_tile, example_tile], tl.float32)  # of_density_n d_n
        second = tl.zeros([4, 4, child_tile, example_tile], tl.float32)  # of_density_n d_n^2
        for start in range(0, children, child_tile):
            n, there = each_child(start, children, child_tile)
            there &= b < batch
            c = tl.load(child + p * children + n)
            slot = (parent * children + n) * batch + b
            next_mass = tl.load(next_shares + slot, mask=there, other=0.0) * tl.load(
                activations + c * batch + b, mask=there, other=0.0
            )
            of_next = tl.load(of_r + slot, mask=there, other=0.0)
            of_joint = next_mass * (of_next - tl.load(later + c * batch + b, mask=there, other=0.0))
            tl.store(of_r + slot, of_joint, mask=there)
            difference = load_votes(poses, matrices, offsets, c, j, n, b, children, batch) - mean
            weighted = eta * of_joint * difference
            sum_of_joint += of_joint
            first += weighted
            second += weighted * difference
        of_log_activation = tl.sum(sum_of_joint, axis=2, keep_dims=True)
        sum_of_density = eta * of_log_activation
        of_mean = 2 * precision * tl.sum(first, axis=2, keep_dims=True)
        of_variance = 2 * precision * precision * tl.sum(second, axis=2, keep_dims=True)

    complement = tl.load(complements + here, mask=b < batch, other=0.0)
    of_budget = tl.load(inverse_temperature) * complement * of_log_activation
    of_logs = -sum_of_density - total * of_budget
    of_variance += precision * of_logs
    inverse = 1 / (total + mass_floor)
    of_mean -= 2 * of_variance * mean * (mass_floor * inverse)
    of_total = -(16 * tl.load(beta_u + j) + tl.load(half_logs + here, mask=b < batch, other=0.0)) * of_budget
    of_total -= inverse * over_elements(of_variance * (0.5 / precision - variance_floor))
    tl.store(of_means + of_elements, of_mean, mask=b < batch)
    tl.store(of_variances + of_elements, of_variance, mask=b < batch)
    tl.store(of_totals + here, of_total, mask=b < batch)
    tl.store(of_budgets + here, of_budget, mask=b < batch)


@triton.jit
def through_vote(
    vote,
    mass,
    of_joint,
    parent,
    b,
    means,
    precisions,
    totals,
    of_means,
    of_variances,
    of_totals,
    batch,
    mass_floor,
    eta,
):
    """Back from a parent to one child, [.., 1, b]: the gradients by r_n and by the vote."""
    of_elements, here = (parent * 16 + each_element()) * batch + b, parent * batch + b
    difference = vote - tl.load(means + of_elements, mask=b < batch, other=0.0)
    precision = tl.load(precisions + of_elements, mask=b < batch, other=0.0)
    inverse = 1 / (tl.load(totals + here, mask=b < batch, other=0.0) + mass_floor)
    of_mean = tl.load(of_means + of_elements, mask=b < batch, other=0.0)
    change = tl.load(of_variances + of_elements, mask=b < batch, other=0.0) * difference + of_mean
    of_r = tl.load(of_totals + here, mask=b < batch, other=0.0) + inverse * over_elements(difference * change)
    of_vote = mass * inverse * (2 * change - of_mean) - 2 * eta * of_joint * precision * difference
    return of_r, of_vote


@kernel
def gradients_of_matrix(
    poses,
    activations,
    matrices,
    offsets,
    child,
    shares,  # [P, J, N, B] by the four strides: R
    stride_p,
    stride_j,
    stride_n,
    stride_b,
    means,
    precisions,
    totals,
    of_joints,  # [P, J, N, B]
    of_means,
    of_variances,
    of_totals,
    of_matrices,  # [J, N, 16], added to
    batch,
    types,
    children,
    positions,
    mass_floor,
    eta,
    example_tile: tl.constexpr,
):
    """Of one matrix W_jn: a sum over parent positions and examples."""
    number = tl.program_id(0).to(tl.int64)
    j, n = number // children, number % children
    h = each_element()
    of_matrix = tl.zeros([4, 4, 1, example_tile], tl.float32)
    for p in range(positions):
        c = tl.load(child + p * children + n)
        for start in range(0, batch, example_tile):
            b = start + tl.arange(0, example_tile)[None, None, None]
            parent = p * types + j
            share = shares + p * stride_p + j * stride_j + n * stride_n + b * stride_b
            mass = tl.load(share, mask=b < batch, other=0.0)
            mass *= tl.load(activations + c * batch + b, mask=b < batch, other=0.0)
            of_joint = tl.load(of_joints + (parent * children + n) * batch + b, mask=b < batch, other=0.0)
            vote = load_votes(poses, matrices, offsets, c, j, n, b, children, batch)
            _, of_vote = through_vote(
                vote,
                mass,
                of_joint,
                parent,
                b,
                means,
                precisions,
                totals,
                of_means,
                of_variances,
                of_totals,
                batch,
                mass_floor,
                eta,
            )
            pose = tl.load(poses + (c * 16 + h) * batch + b, mask=b < batch, other=0.0)
            of_matrix += product_of_transposed(pose, of_vote)
    here = of_matrices + number * 16 + h  # [4, 4, 1, 1]
    tl.store(here, tl.load(here) + tl.sum(of_matrix, axis=3, keep_dims=True))


@kernel
def gradients_of_child(
    poses,
    activations,
    matrices,
    offsets,
    places,  # [C, Q]
    counts,  # [C]
    shares,  # [P, J, N, B] by the four strides: R
    stride_p,
    stride_j,
    stride_n,
    stride_b,
    means,
    precisions,
    totals,
    of_r,  # [P, J, N, B], of_joint, filled with of_r
    of_means,
    of_variances,
    of_totals,
    now,  # [C, B], filled: the sum over a child's parents of R of_r
    of_poses,  # [C, 16, B], added to
    of_activations,  # [C, B], added to
    batch,
    types,
    children,
    reach,
    mass_floor,
    eta,
    example_tile: tl.constexpr,
):
    """Of one child in some examples: a sum over all parents that it reaches."""
    c = tl.program_id(0).to(tl.int64)
    b, h = each_example(tl.program_id(1), example_tile), each_element()
    activation = tl.load(activations + c * batch + b, mask=b < batch, other=0.0)
    of_pose = tl.zeros([4, 4, 1, example_tile], tl.float32)
    of_activation = tl.zeros([1, 1, 1, example_tile], tl.float32)
    for q in range(tl.load(counts + c)):
        place = tl.load(places + c * reach + q)
        p, n = place // children, place % children
        for j in range(types):
            parent = p * types + j
            share = shares + p * stride_p + j * stride_j + n * stride_n + b * stride_b
            share = tl.load(share, mask=b < batch, other=0.0)
            slot = of_r + (parent * children + n) * batch + b
            vote = load_votes(poses, matrices, offsets, c, j, n, b, children, batch)
            of_mass, of_vote = through_vote(
                vote,
                share * activation,
                tl.load(slot, mask=b < batch, other=0.0),
                parent,
                b,
                means,
                precisions,
                totals,
                of_means,
                of_variances,
                of_totals,
                batch,
                mass_floor,
                eta,
            )
            tl.store(slot, of_mass, mask=b < batch)
            of_activation += share * of_mass
            matrix = tl.load(matrices + (j * children + n) * 16 + h)
            of_pose += product_with_transposed(of_vote, matrix)
    here, of_elements = c * batch + b, (c * 16 + h) * batch + b
    tl.store(now + here, of_activation, mask=b < batch)
    before = tl.load(of_activations + here, mask=b < batch, other=0.0)
    tl.store(of_activations + here, before + of_activation, mask=b < batch)
    before = tl.load(of_poses + of_elements, mask=b < batch, other=0.0)
    tl.store(of_poses + of_elements, before + of_pose, mask=b < batch)
