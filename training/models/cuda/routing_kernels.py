"""The kernels of routing by agreement in Triton, forward and backward; `fused_routing.py` calls them.

A program works on a tile of images. It goes through lower capsules one by one, makes the predictions of one
for all upper capsules in one product of matrices, u_hat = u_i W_i, and uses them at once: they are never
written down. So each iteration reads W once for all images of a tile. No product is rounded to TF32.
"""

# B images, I lower capsules, J upper capsules, E lower pose, D upper pose: `batch`, `lower`, `upper`,
# `lower_dim` and `upper_dim`. A tile of predictions is [images, J, D] or [images, J * D]; J, D and E are
# filled up to powers of 2 that Triton can multiply.
#
# Numbers in the kernels: b of images [images, 1], j of upper capsules [1, J], e of a lower pose [1, E]

import triton
import triton.language as tl

NOWHERE = tl.constexpr(-1e30)  # logit of an upper capsule that fills a tile up; finite: nothing becomes NaN


@triton.jit
def load_upper(x, b, batch, upper, upper_dim, upper_tile: tl.constexpr, upper_dim_tile: tl.constexpr):
    """Something of upper capsules, x [B, J, D], for a tile of images: [images, J, D]."""
    j, d = tl.arange(0, upper_tile)[None, :, None], tl.arange(0, upper_dim_tile)[None, None]
    there = (b[:, :, None] < batch) & (j < upper) & (d < upper_dim)
    return tl.load(x + (b[:, :, None] * upper + j) * upper_dim + d, mask=there, other=0.0)


@triton.jit
def store_upper(x, value, b, batch, upper, upper_dim, upper_tile: tl.constexpr, upper_dim_tile: tl.constexpr):
    """The other way round."""
    j, d = tl.arange(0, upper_tile)[None, :, None], tl.arange(0, upper_dim_tile)[None, None]
    there = (b[:, :, None] < batch) & (j < upper) & (d < upper_dim)
    tl.store(x + (b[:, :, None] * upper + j) * upper_dim + d, value, mask=there)


@triton.jit
def load_pose(u, i, b, batch, lower, lower_dim, lower_dim_tile: tl.constexpr):
    """u_i, [images, E]."""
    e = tl.arange(0, lower_dim_tile)[None]
    return tl.load(u + (b * lower + i) * lower_dim + e, mask=(b < batch) & (e < lower_dim), other=0.0)


@triton.jit
def load_matrix(
    weight,
    i,
    upper,
    lower_dim,
    upper_dim,
    upper_tile: tl.constexpr,
    lower_dim_tile: tl.constexpr,
    upper_dim_tile: tl.constexpr,
):
    """W_i, [E, J * D]."""
    e, column = tl.arange(0, lower_dim_tile)[:, None], tl.arange(0, upper_tile * upper_dim_tile)[None]
    j, d = column // upper_dim_tile, column % upper_dim_tile
    there = (e < lower_dim) & (j < upper) & (d < upper_dim)
    return tl.load(weight + ((i * lower_dim + e) * upper + j) * upper_dim + d, mask=there, other=0.0)


@triton.jit
def predict(
    u,
    weight,
    i,
    b,
    batch,
    lower,
    upper,
    lower_dim,
    upper_dim,
    image_tile: tl.constexpr,
    upper_tile: tl.constexpr,
    lower_dim_tile: tl.constexpr,
    upper_dim_tile: tl.constexpr,
):
    """u_hat_i = u_i W_i, what one lower capsule predicts for all upper ones, [images, J, D]."""
    pose = load_pose(u, i, b, batch, lower, lower_dim, lower_dim_tile)
    matrix = load_matrix(weight, i, upper, lower_dim, upper_dim, upper_tile, lower_dim_tile, upper_dim_tile)
    u_hat = tl.dot(pose, matrix, input_precision="ieee")
    return tl.reshape(u_hat, [image_tile, upper_tile, upper_dim_tile])


@triton.jit
def couple(logits, none_of_the_above: tl.constexpr):
    """Softmax over upper capsules, [images, J]; one more logit is 0 where none of the above may be meant."""
    most = tl.max(logits, axis=1, keep_dims=True)
    if none_of_the_above:
        most = tl.maximum(most, 0.0)
    shares = tl.exp(logits - most)
    total = tl.sum(shares, axis=1, keep_dims=True)
    if none_of_the_above:
        total += tl.exp(-most)
    return shares / total


@triton.jit
def route_once(
    u,  # [B, I, E]
    weight,  # [I, E, J, D]
    logits,  # b of the iteration before, [B, I, J] by two strides; in the first iteration b itself
    stride_b,
    stride_i,
    v,  # of the iteration before, [B, J, D]; not read in the first iteration
    next_logits,  # b, [B, I, J], filled, but for the first iteration
    sums,  # [chunks, B, J, D], filled: of a chunk of lower capsules the sum of c u_hat
    batch,
    lower,
    upper,
    lower_dim,
    upper_dim,
    is_first: tl.constexpr,
    none_of_the_above: tl.constexpr,
    image_tile: tl.constexpr,
    chunk: tl.constexpr,
    upper_tile: tl.constexpr,
    lower_dim_tile: tl.constexpr,
    upper_dim_tile: tl.constexpr,
):
    """For some images and a chunk of lower capsules: add the agreement to the logits, couple and sum."""
    b = tl.program_id(0).to(tl.int64) * image_tile + tl.arange(0, image_tile)[:, None]
    j = tl.arange(0, upper_tile)[None]
    first = tl.program_id(1) * chunk
    if not is_first:
        v_before = load_upper(v, b, batch, upper, upper_dim, upper_tile, upper_dim_tile)
    s = tl.zeros([image_tile, upper_tile, upper_dim_tile], tl.float32)
    for i in range(first, tl.minimum(first + chunk, lower)):
        u_hat = predict(
            u,
            weight,
            i,
            b,
            batch,
            lower,
            upper,
            lower_dim,
            upper_dim,
            image_tile,
            upper_tile,
            lower_dim_tile,
            upper_dim_tile,
        )
        there = (b < batch) & (j < upper)
        logit = tl.load(logits + b * stride_b + i * stride_i + j, mask=there, other=NOWHERE)
        if not is_first:
            logit += tl.sum(u_hat * v_before, axis=2)
            tl.store(next_logits + (b * lower + i) * upper + j, logit, mask=there)
        s += couple(logit, none_of_the_above)[:, :, None] * u_hat
    chunk_sums = sums + tl.program_id(1).to(tl.int64) * batch * upper * upper_dim
    store_upper(chunk_sums, s, b, batch, upper, upper_dim, upper_tile, upper_dim_tile)


@triton.jit
def gradients_of_iteration(
    u,
    weight,
    logits,  # b, [B, I, J] by two strides
    stride_b,
    stride_i,
    grad_s,  # [B, J, D]
    grad_next_logits,  # of the next iteration, [B, I, J]; in the last it is 0
    grad_logits,  # [B, I, J], filled
    sums,  # [chunks, B, J, D], filled: of a chunk of lower capsules, for the v of the iteration before
    batch,
    lower,
    upper,
    lower_dim,
    upper_dim,
    none_of_the_above: tl.constexpr,
    image_tile: tl.constexpr,
    chunk: tl.constexpr,
    upper_tile: tl.constexpr,
    lower_dim_tile: tl.constexpr,
    upper_dim_tile: tl.constexpr,
):
    """For some images and a chunk of lower capsules: back through the sum, the softmax and the agreement."""
    b = tl.program_id(0).to(tl.int64) * image_tile + tl.arange(0, image_tile)[:, None]
    j = tl.arange(0, upper_tile)[None]
    first = tl.program_id(1) * chunk
    grad_s_tile = load_upper(grad_s, b, batch, upper, upper_dim, upper_tile, upper_dim_tile)
    grad_v = tl.zeros([image_tile, upper_tile, upper_dim_tile], tl.float32)
    for i in range(first, tl.minimum(first + chunk, lower)):
        u_hat = predict(
            u,
            weight,
            i,
            b,
            batch,
            lower,
            upper,
            lower_dim,
            upper_dim,
            image_tile,
            upper_tile,
            lower_dim_tile,
            upper_dim_tile,
        )
        there, slots = (b < batch) & (j < upper), (b * lower + i) * upper + j
        logit = tl.load(logits + b * stride_b + i * stride_i + j, mask=there, other=NOWHERE)
        c = couple(logit, none_of_the_above)
        grad_c = tl.sum(u_hat * grad_s_tile, axis=2)
        grad_logit = c * (grad_c - tl.sum(c * grad_c, axis=1, keep_dims=True))
        grad_logit += tl.load(grad_next_logits + slots, mask=there, other=0.0)
        tl.store(grad_logits + slots, grad_logit, mask=there)
        grad_v += grad_logit[:, :, None] * u_hat
    chunk_sums = sums + tl.program_id(1).to(tl.int64) * batch * upper * upper_dim
    store_upper(chunk_sums, grad_v, b, batch, upper, upper_dim, upper_tile, upper_dim_tile)


@triton.jit
def gradients_of_factors(
    u,
    weight,
    first_logits,  # b of the first iteration, [B, I, J] by two strides
    stride_b,
    stride_i,
    logits,  # b of the others, [T - 1, B, I, J]
    v,  # [T, B, J, D]
    grad_s,  # [T, B, J, D]
    grad_logits,  # of all iterations but the first, and 0 behind the last, [T, B, I, J]
    grad_u,  # [B, I, E], filled
    grad_weight,  # [I, E, J, D], filled
    batch,
    lower,
    upper,
    lower_dim,
    upper_dim,
    iterations,
    none_of_the_above: tl.constexpr,
    image_tile: tl.constexpr,
    upper_tile: tl.constexpr,
    lower_dim_tile: tl.constexpr,
    upper_dim_tile: tl.constexpr,
):
    """Of one lower capsule: its pose in all images, and its matrices."""
    i = tl.program_id(0).to(tl.int64)
    j, e = tl.arange(0, upper_tile)[None], tl.arange(0, lower_dim_tile)[None]
    columns: tl.constexpr = upper_tile * upper_dim_tile
    matrix = load_matrix(weight, i, upper, lower_dim, upper_dim, upper_tile, lower_dim_tile, upper_dim_tile)
    grad_matrix = tl.zeros([lower_dim_tile, columns], tl.float32)
    for start in range(0, batch, image_tile):
        b = tl.cast(start, tl.int64) + tl.arange(0, image_tile)[:, None]
        there, slots = (b < batch) & (j < upper), (b * lower + i) * upper + j
        grad_u_hat = tl.zeros([image_tile, upper_tile, upper_dim_tile], tl.float32)
        for t in range(iterations):
            at = tl.cast(t, tl.int64)
            if t == 0:
                logit = tl.load(first_logits + b * stride_b + i * stride_i + j, mask=there, other=NOWHERE)
            else:
                logits_of_t = logits + (at - 1) * batch * lower * upper
                logit = tl.load(logits_of_t + slots, mask=there, other=NOWHERE)
            c = couple(logit, none_of_the_above)
            grad_agreement = tl.load(grad_logits + at * batch * lower * upper + slots, mask=there, other=0.0)
            start_of_t = at * batch * upper * upper_dim
            grad_s_tile = load_upper(
                grad_s + start_of_t, b, batch, upper, upper_dim, upper_tile, upper_dim_tile
            )
            grad_u_hat += c[:, :, None] * grad_s_tile
            v_of_t = load_upper(v + start_of_t, b, batch, upper, upper_dim, upper_tile, upper_dim_tile)
            grad_u_hat += grad_agreement[:, :, None] * v_of_t
        grad_u_hat = tl.reshape(grad_u_hat, [image_tile, columns])
        pose = load_pose(u, i, b, batch, lower, lower_dim, lower_dim_tile)
        grad_matrix += tl.dot(tl.trans(pose), grad_u_hat, input_precision="ieee")
        grad_pose = tl.dot(grad_u_hat, tl.trans(matrix), input_precision="ieee")
        grad_u_slots = grad_u + (b * lower + i) * lower_dim + e
        tl.store(grad_u_slots, grad_pose, mask=(b < batch) & (e < lower_dim))
    e, column = tl.arange(0, lower_dim_tile)[:, None], tl.arange(0, columns)[None]
    j, d = column // upper_dim_tile, column % upper_dim_tile
    there = (e < lower_dim) & (j < upper) & (d < upper_dim)
    tl.store(grad_weight + ((i * lower_dim + e) * upper + j) * upper_dim + d, grad_matrix, mask=there)
