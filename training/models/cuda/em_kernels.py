"""The kernels of EM routing in Triton, forward and backward; `fused_em.py` calls them.

The mathematics and its letters are those of `../cpu/fused_em.py`. Votes are made from their two factors
wherever they are wanted, and never written down. All that is summed is summed by one program in a fixed
order, without atomic additions, so that results repeat to the bit.

A tile has four axes: rows and columns of a 4x4 pose matrix, children, examples, [4, 4, n, b]. In memory, too,
examples lie last. With 32 examples in a tile and as many warps as children, each thread has the whole vote of
one child in one example: products of matrices need no exchange between threads.
"""

# B examples, C children in all, P parent positions, J parent types, N children of a parent, Q parent
# positions that a child reaches at most; `batch`, `types`, `children` and `reach` are B, J, N and Q
#
# Numbers in the kernels, tiles that broadcast: b of examples, n of children in a receptive field, c of the
# same among all children, p and j of a parent, h of a pose element. `there` says what of a tile exists.

import triton
import triton.language as tl

NOWHERE = tl.constexpr(-1e30)  # log of what a parent that is not there gets; finite: nothing becomes NaN
# Knowing that B is a multiple of 16, Triton would load four examples in a thread, and exchange them again.
kernel = triton.jit(do_not_specialize=["batch"])


@triton.jit
def each_element():
    """0 to 15, row by row, [4, 4, 1, 1]."""
    along = tl.arange(0, 4)
    return 4 * along[:, None, None, None] + along[None, :, None, None]


@triton.jit
def over_elements(x):
    """Sum over rows and columns, [1, 1, n, b]."""
    return tl.sum(tl.sum(x, axis=1, keep_dims=True), axis=0, keep_dims=True)


@triton.jit
def product(a, b):
    """Of 4x4 matrices: a b."""
    return tl.sum(a[:, :, None] * b[None], axis=1)


@triton.jit
def product_with_transposed(a, b):
    """Of 4x4 matrices: a b^T."""
    return tl.sum(a[:, None] * b[None], axis=2)


@triton.jit
def product_of_transposed(a, b):
    """Of 4x4 matrices: a^T b."""
    return tl.sum(a[:, :, None] * b[:, None], axis=0)


@triton.jit
def each_example(program, tile: tl.constexpr):
    """The examples that a program works on, [1, 1, 1, b]."""
    return program.to(tl.int64) * tile + tl.arange(0, tile)[None, None, None]


@triton.jit
def each_child(start, children, tile: tl.constexpr):
    """Children of a field, [1, 1, n, 1], and which exist; instead of those that do not, it is the last."""
    n = start + tl.arange(0, tile)[None, None, :, None]
    return tl.minimum(n, children - 1), n < children


@triton.jit
def load_votes(poses, matrices, offsets, c, j, n, b, children, batch):
    """V_n = M_c W_jn + offset_n, [4, 4, n, b]."""
    h = each_element()
    pose = tl.load(poses + (c * 16 + h) * batch + b, mask=b < batch, other=0.0)
    matrix = tl.load(matrices + (j * children + n) * 16 + h)
    return product(pose, matrix) + tl.load(offsets + n * 16 + h)


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
    here, of_elements = parent * batch + b, (parent * 16 + h) * batch + b
    tl.store(means + of_elements, mean, mask=b < batch)
    tl.store(precisions + of_elements, precision, mask=b < batch)
    tl.store(half_logs + here, logs, mask=b < batch)
    tl.store(totals + here, total, mask=b < batch)
    tl.store(complements + here, tl.exp(log_activation - z), mask=b < batch)  # exact where a is near 1
    tl.store(log_activations + here, log_activation, mask=b < batch)

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
