"""EM routing in Triton, forward: an M-step for each parent and an E-step for each child.

The mathematics and its letters are those of `../cpu/fused_em.py`. Votes are made from their two factors
wherever they are wanted, and never written down. All that is summed is summed by one program in a fixed
order, without atomic additions, so that results repeat to the bit.
"""

# letters and names as in `em_tiles.py`

import triton.language as tl

from training.models.cuda.em_tiles import (
    each_child,
    each_element,
    each_example,
    kernel,
    load_votes,
    over_elements,
)

NOWHERE = tl.constexpr(-1e30)  # log of what a parent that is not there gets; finite: nothing becomes NaN


@kernel
def m_step(
    poses,  # [C, 16, B]
    activations,  # [C, B]
    matrices,  # [J, N, 16]
    offsets,  # [N, 16]
    child,  # [P, N]
    shares,  # [P, J, N, B] by the four strides: R
    stride_p,
    stride_j,
    stride_n,
    stride_b,
    beta_u,  # [J]
    budget,  # [J]
    inverse_temperature,  # []: lambda
    means,  # [P, J, 16, B], filled
    precisions,  # [P, J, 16, B], filled: q
    half_logs,  # [P, J, B], filled: logs
    totals,  # [P, J, B], filled
    complements,  # [P, J, B], filled: 1 - a
    log_activations,  # [P, J, B], filled
    joint,  # [P, J, N, B], filled, but for the last iteration
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
    """Fit one parent to its children's votes in some examples, and find the log joint of each child."""
    parent = tl.program_id(0).to(tl.int64)
    p, j = parent // types, parent % types
    b, h = each_example(tl.program_id(1), example_tile), each_element()
    shares += p * stride_p + j * stride_j

    mass_of_tile = tl.zeros([1, 1, child_tile, example_tile], tl.float32)
    first = tl.zeros([4, 4, child_tile, example_tile], tl.float32)
    for start in range(0, children, child_tile):
        n, there = each_child(start, children, child_tile)
        there &= b < batch
        c = tl.load(child + p * children + n)
        share = tl.load(shares + n * stride_n + b * stride_b, mask=there, other=0.0)
        mass = share * tl.load(activations + c * batch + b, mask=there, other=0.0)
        mass_of_tile += mass
        first += mass * load_votes(poses, matrices, offsets, c, j, n, b, children, batch)
    total = tl.sum(mass_of_tile, axis=2, keep_dims=True)  # [1, 1, 1, b]
    mean = tl.sum(first, axis=2, keep_dims=True) / (total + mass_floor)  # [4, 4, 1, b]

    second = tl.zeros([4, 4, child_tile, example_tile], tl.float32)
    for start in range(0, children, child_tile):
        n, there = each_child(start, children, child_tile)
        there &= b < batch
        c = tl.load(child + p * children + n)
        share = tl.load(shares + n * stride_n + b * stride_b, mask=there, other=0.0)
        mass = share * tl.load(activations + c * batch + b, mask=there, other=0.0)
        difference = load_votes(poses, matrices, offsets, c, j, n, b, children, batch) - mean
        second += mass * difference * difference
    variance = tl.sum(second, axis=2, keep_dims=True) / (total + mass_floor) + variance_floor

    precision = 0.5 / variance
    logs = over_elements(0.5 * tl.log(variance))
    cost = (16 * tl.load(beta_u + j) + logs) * total
    z = tl.load(inverse_temperature) * (tl.load(budget + j) - cost)
    log_activation = tl.minimum(z, 0.0) - tl.log(1 + tl.exp(-tl.abs(z)))  # log of the sigmoid
    parent_offsets, element_offsets = parent * batch + b, (parent * 16 + h) * batch + b
    tl.store(means + element_offsets, mean, mask=b < batch)
    tl.store(precisions + element_offsets, precision, mask=b < batch)
    tl.store(half_logs + parent_offsets, logs, mask=b < batch)
    tl.store(totals + parent_offsets, total, mask=b < batch)
    complement = tl.exp(log_activation - z)  # exact where a is near 1
    tl.store(complements + parent_offsets, complement, mask=b < batch)
    tl.store(log_activations + parent_offsets, log_activation, mask=b < batch)

    if not is_last:
        for start in range(0, children, child_tile):
            n, there = each_child(start, children, child_tile)
            c = tl.load(child + p * children + n)
            difference = load_votes(poses, matrices, offsets, c, j, n, b, children, batch) - mean
            log_density = -logs - over_elements(precision * difference * difference)
            slot = joint + (parent * children + n) * batch + b
            tl.store(slot, log_activation + eta * log_density, mask=there & (b < batch))


@kernel
def e_step(
    places,  # [C, Q], where a child is seen: p * N + n
    counts,  # [C], in how many places
    joint,  # [P, J, N, B], of each child in each place, filled: R of the next iteration
    batch,
    types,
    children,
    reach,
    type_tile: tl.constexpr,
    example_tile: tl.constexpr,
):
    """Share one child out to all parents that it reaches, in some examples: a softmax over them."""
    c = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64) * example_tile + tl.arange(0, example_tile)[None]  # [1, b]
    j = tl.arange(0, type_tile)[:, None]  # [j, 1]
    there = (j < types) & (b < batch)
    most = tl.full([1, example_tile], NOWHERE, tl.float32)
    total = tl.zeros([1, example_tile], tl.float32)  # of exp(joint - most)
    for q in range(tl.load(counts + c)):
        place = tl.load(places + c * reach + q)
        p, n = place // children, place % children
        logs = tl.load(joint + ((p * types + j) * children + n) * batch + b, mask=there, other=NOWHERE)
        before, most = most, tl.maximum(most, tl.max(logs, axis=0, keep_dims=True))
        total = total * tl.exp(before - most) + tl.sum(tl.exp(logs - most), axis=0, keep_dims=True)
    for q in range(tl.load(counts + c)):
        place = tl.load(places + c * reach + q)
        p, n = place // children, place % children
        slot = joint + ((p * types + j) * children + n) * batch + b
        logs = tl.load(slot, mask=there, other=NOWHERE)
        tl.store(slot, tl.exp(logs - most) / total, mask=there)
