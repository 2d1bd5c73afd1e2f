"""Sums over predictions, each made where it is wanted, compiled; `factored_votes.py` has the mathematics.

16 lower capsules are taken at once, one in each lane of a vector (`lanes.py`). A block of their matrices, for
one upper capsule and lower poses of 8 elements, takes 8 KiB: it stays in the nearest cache while all images
pass.
"""

# B batch, J upper capsules, N blocks of L = 16 lower capsules, E lower pose, 16 elements of an upper pose
# c [B, J, N, L], u [N, B, E, L], weight [J, N, E, 16, L] and v [B, J, 16] are float32 and contiguous; a part
# is the first and the last + 1 of what one thread does.

from typing import Any

import numpy as np

from training.models.cpu.lanes import (
    ELEMENTS,
    LANES,
    broadcast,
    dot,
    every,
    kernel,
    load,
    no_pose,
    store,
    sums_over_lanes,
)

IMAGES = 16  # whose sums stay in the nearest cache while the lower capsules pass


@kernel
def sum_weighted(part: Any, c: Any, u: Any, weight: Any, s: Any) -> None:
    """Fill in s, [B, J, 16], of some images: the sum over i, e of c_ij u_ie W_ije."""
    sums = np.empty((IMAGES, ELEMENTS, LANES), np.float32)
    for j in range(len(weight)):
        for first in range(part[0], part[1], IMAGES):
            last = min(first + IMAGES, part[1])
            for b in range(first, last):
                store(sums[b - first], no_pose())
            for n in range(len(u)):
                for b in range(first, last):
                    share, total = load(c[b, j, n]), load(sums[b - first])
                    for e in range(u.shape[2]):
                        total += load(weight[j, n, e]) * (share * load(u[n, b, e]))
                    store(sums[b - first], total)
            for b in range(first, last):
                store(s[b, j], sums_over_lanes(load(sums[b - first])))


@kernel
def agree(part: Any, u: Any, weight: Any, v: Any, a: Any) -> None:
    """Fill in a, [B, J, N, L], of some blocks: the sum over e of u_ie (W_ije . v_j)."""
    for n in range(part[0], part[1]):
        for j in range(len(weight)):
            for b in range(len(v)):
                upper, total = broadcast(v[b, j]), every(0)
                for e in range(u.shape[2]):
                    total += load(u[n, b, e]) * dot(load(weight[j, n, e]), upper)
                store(a[b, j, n], total)


@kernel
def differentiate(
    part: Any, c: Any, u: Any, weight: Any, v: Any, grad_c: Any, grad_u: Any, grad_weight: Any
) -> None:
    """Fill in df/dc, df/du and df/dW of some blocks; each is shaped as what it is the gradient of."""
    for n in range(part[0], part[1]):
        grad_u[n] = 0
        for j in range(len(weight)):
            for b in range(len(v)):
                upper, share, total = broadcast(v[b, j]), load(c[b, j, n]), every(0)
                for e in range(u.shape[2]):
                    along = dot(load(weight[j, n, e]), upper)
                    total += load(u[n, b, e]) * along
                    store(grad_u[n, b, e], load(grad_u[n, b, e]) + share * along)
                store(grad_c[b, j, n], total)
            for e in range(u.shape[2]):
                of_pose = no_pose()
                for b in range(len(v)):
                    of_pose += broadcast(v[b, j]) * (load(c[b, j, n]) * load(u[n, b, e]))
                store(grad_weight[j, n, e], of_pose)
