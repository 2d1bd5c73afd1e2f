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
    later,  # [C, B], in the next iteration the sum over a child's parents of R grad_r
    grad_r,  # [P, J, N, B], in the next iteration; filled with grad_joint, but in the last iteration
    grad_mean_given,  # [P, J, 16, B], of the last iteration
    grad_log_activation_given,  # [P, J, B], of the same
    grad_means,  # [P, J, 16, B], filled
    grad_variances,  # [P, J, 16, B], filled
    grad_totals,  # [P, J, B], filled
    grad_budgets,  # [P, J, B], filled
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

    `grad_totals` is the part of grad_r that all children have in common: of the total in the parent's cost,
    and of the variance less its floor.
    """
    parent = tl.program_id(0).to(tl.int64)
    p, j = parent // types, parent % types
    b, h = each_example(tl.program_id(1), example_tile), each_element()
    parent_offsets, element_offsets = parent * batch + b, (parent * 16 + h) * batch + b
    mean = tl.load(means + element_offsets, mask=b < batch, other=0.0)
    precision = tl.load(precisions + element_offsets, mask=b < batch, other=1.0)
    total = tl.load(totals + parent_offsets, mask=b < batch, other=0.0)

    if is_last:
        grad_mean = tl.load(grad_mean_given + element_offsets, mask=b < batch, other=0.0)
        grad_variance = tl.zeros([4, 4, 1, example_tile], tl.float32)
        grad_log_activation = tl.load(grad_log_activation_given + parent_offsets, mask=b < batch, other=0.0)
        sum_of_density = tl.zeros([1, 1, 1, example_tile], tl.float32)
    else:
        sum_of_joint = tl.zeros([1, 1, child_tile, example_tile], tl.float32)
        first = tl.zeros([4, 4, child_tile, example_tile], tl.float32)  # grad_density_n d_n
        second = tl.zeros([4, 4, child_tile, example_tile], tl.float32)  # grad_density_n d_n^2
        for start in range(0, children, child_tile):
            n, there = each_child(start, children, child_tile)
            there &= b < batch
            c = tl.load(child + p * children + n)
            slot = (parent * children + n) * batch + b
            next_mass = tl.load(next_shares + slot, mask=there, other=0.0) * tl.load(
                activations + c * batch + b, mask=there, other=0.0
            )
            grad_next = tl.load(grad_r + slot, mask=there, other=0.0)
            grad_joint = next_mass * (grad_next - tl.load(later + c * batch + b, mask=there, other=0.0))
            tl.store(grad_r + slot, grad_joint, mask=there)
            difference = load_votes(poses, matrices, offsets, c, j, n, b, children, batch) - mean
            weighted = eta * grad_joint * difference
            sum_of_joint += grad_joint
            first += weighted
            second += weighted * difference
        grad_log_activation = tl.sum(sum_of_joint, axis=2, keep_dims=True)
        sum_of_density = eta * grad_log_activation
        grad_mean = 2 * precision * tl.sum(first, axis=2, keep_dims=True)
        grad_variance = 2 * precision * precision * tl.sum(second, axis=2, keep_dims=True)

    complement = tl.load(complements + parent_offsets, mask=b < batch, other=0.0)
    grad_budget = tl.load(inverse_temperature) * complement * grad_log_activation
    grad_logs = -sum_of_density - total * grad_budget
    grad_variance += precision * grad_logs
    inverse = 1 / (total + mass_floor)
    grad_mean -= 2 * grad_variance * mean * (mass_floor * inverse)
    grad_total = (
        -(16 * tl.load(beta_u + j) + tl.load(half_logs + parent_offsets, mask=b < batch, other=0.0))
        * grad_budget
    )
    grad_total -= inverse * over_elements(grad_variance * (0.5 / precision - variance_floor))
    tl.store(grad_means + element_offsets, grad_mean, mask=b < batch)
    tl.store(grad_variances + element_offsets, grad_variance, mask=b < batch)
    tl.store(grad_totals + parent_offsets, grad_total, mask=b < batch)
    tl.store(grad_budgets + parent_offsets, grad_budget, mask=b < batch)


@triton.jit
def through_vote(
    vote,
    mass,
    grad_joint,
    parent,
    b,
    means,
    precisions,
    totals,
    grad_means,
    grad_variances,
    grad_totals,
    batch,
    mass_floor,
    eta,
):
    """Back from a parent to one child, [.., 1, b]: the gradients by r_n and by the vote."""
    element_offsets, parent_offsets = (parent * 16 + each_element()) * batch + b, parent * batch + b
    difference = vote - tl.load(means + element_offsets, mask=b < batch, other=0.0)
    precision = tl.load(precisions + element_offsets, mask=b < batch, other=0.0)
    inverse = 1 / (tl.load(totals + parent_offsets, mask=b < batch, other=0.0) + mass_floor)
    grad_mean = tl.load(grad_means + element_offsets, mask=b < batch, other=0.0)
    change = tl.load(grad_variances + element_offsets, mask=b < batch, other=0.0) * difference + grad_mean
    grad_r = tl.load(grad_totals + parent_offsets, mask=b < batch, other=0.0) + inverse * over_elements(
        difference * change
    )
    grad_vote = mass * inverse * (2 * change - grad_mean) - 2 * eta * grad_joint * precision * difference
    return grad_r, grad_vote


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
    grad_joints,  # [P, J, N, B]
    grad_means,
    grad_variances,
    grad_totals,
    grad_matrices,  # [J, N, 16], added to
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
    grad_matrix = tl.zeros([4, 4, 1, example_tile], tl.float32)
    for position in range(positions):
        p = tl.cast(position, tl.int64)  # strides times it pass 2^31
        c = tl.load(child + p * children + n)
        for start in range(0, batch, example_tile):
            b = start + tl.arange(0, example_tile)[None, None, None]
            parent = p * types + j
            share = shares + p * stride_p + j * stride_j + n * stride_n + b * stride_b
            mass = tl.load(share, mask=b < batch, other=0.0)
            mass *= tl.load(activations + c * batch + b, mask=b < batch, other=0.0)
            grad_joint = tl.load(grad_joints + (parent * children + n) * batch + b, mask=b < batch, other=0.0)
            vote = load_votes(poses, matrices, offsets, c, j, n, b, children, batch)
            _, grad_vote = through_vote(
                vote,
                mass,
                grad_joint,
                parent,
                b,
                means,
                precisions,
                totals,
                grad_means,
                grad_variances,
                grad_totals,
                batch,
                mass_floor,
                eta,
            )
            pose = tl.load(poses + (c * 16 + h) * batch + b, mask=b < batch, other=0.0)
            grad_matrix += product_of_transposed(pose, grad_vote)
    slot = grad_matrices + number * 16 + h  # [4, 4, 1, 1]
    tl.store(slot, tl.load(slot) + tl.sum(grad_matrix, axis=3, keep_dims=True))


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
    grad_r,  # [P, J, N, B], grad_joint, filled with grad_r
    grad_means,
    grad_variances,
    grad_totals,
    now,  # [C, B], filled: the sum over a child's parents of R grad_r
    grad_poses,  # [C, 16, B], added to
    grad_activations,  # [C, B], added to
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
    grad_pose = tl.zeros([4, 4, 1, example_tile], tl.float32)
    grad_activation = tl.zeros([1, 1, 1, example_tile], tl.float32)
    for q in range(tl.load(counts + c)):
        place = tl.load(places + c * reach + q)
        p, n = place // children, place % children
        for j in range(types):
            parent = p * types + j
            share = shares + p * stride_p + j * stride_j + n * stride_n + b * stride_b
            share = tl.load(share, mask=b < batch, other=0.0)
            slot = grad_r + (parent * children + n) * batch + b
            vote = load_votes(poses, matrices, offsets, c, j, n, b, children, batch)
            grad_mass, grad_vote = through_vote(
                vote,
                share * activation,
                tl.load(slot, mask=b < batch, other=0.0),
                parent,
                b,
                means,
                precisions,
                totals,
                grad_means,
                grad_variances,
                grad_totals,
                batch,
                mass_floor,
                eta,
            )
            tl.store(slot, grad_mass, mask=b < batch)
            grad_activation += share * grad_mass
            matrix = tl.load(matrices + (j * children + n) * 16 + h)
            grad_pose += product_with_transposed(grad_vote, matrix)
    child_offsets, element_offsets = c * batch + b, (c * 16 + h) * batch + b
    tl.store(now + child_offsets, grad_activation, mask=b < batch)
    before = tl.load(grad_activations + child_offsets, mask=b < batch, other=0.0)
    tl.store(grad_activations + child_offsets, before + grad_activation, mask=b < batch)
    before = tl.load(grad_poses + element_offsets, mask=b < batch, other=0.0)
    tl.store(grad_poses + element_offsets, before + grad_pose, mask=b < batch)
