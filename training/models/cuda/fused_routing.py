"""Routing by agreement for training on CUDA: predictions are made where they are wanted, and never stored.

The predictions of 128 MNIST images take 94 MB, which routing by array operations reads in every iteration,
and again for gradients. Here an iteration is one Triton kernel (`routing_kernels.py`), whose partial sums
torch adds and squashes, and so is the way back through it; one more makes the gradients of the factors of the
predictions. Kept for the way back are logits and upper capsules of each iteration. Nothing waits for the GPU,
so that CUDA graphs can record it.
"""

# B images, I lower capsules, J upper capsules, E lower pose, D upper pose, T iterations
#
# For each image, with b the logits, [J, I], in an iteration:
#     c = softmax over j of b, s_j = sum over i of c_ji u_hat_ji + bias_j, v = squash(s),
#     and the next b_ji is b_ji + u_hat_ji . v_j.
#
# Backwards, grad_x is the gradient of the loss with respect to x. From the last iteration to the first, with
# grad_b' of the next one, 0 in the last:
#     grad_v_j = sum over i of grad_b'_ji u_hat_ji, or in the last what comes in; grad_s by the squash,
#     grad_c_ji = u_hat_ji . grad_s_j,
#     grad_b_ji = c_ji (grad_c_ji - sum over j of c grad_c) + grad_b'_ji,
#     and u_hat_ji gets c_ji grad_s_j + grad_b'_ji v_j from every iteration.
# grad_b of an iteration and grad_v of the one before need the same predictions: they are one kernel.

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from export.contract.architecture import SQUASH_EPSILON
from training.models.capsules import squash
from training.models.cuda import routing_kernels

IMAGES = 16  # in a tile
CHUNK = 16  # lower capsules that one program sums over
WARPS = 4  # of a program; the three kernels took 1.3 times as long with 8, and chunks of 32 (H200)
SMALLEST_FACTOR = 16  # side of a matrix that Triton multiplies


def route(
    u: Tensor,
    weight: Tensor,
    priors: Tensor | None,
    bias: Tensor | None,
    upper: int,
    iterations: int,
    none_of_the_above: bool,
) -> Tensor:
    """Routing of the predictions u_hat_j|i = W_ij u_i; all float32 on one device.

    Args:
        u: lower capsules, [B, I, E].
        weight: the matrices of all pairs, [I, E, J * D].
        priors: initial logits, [J, I]; None: 0.
        bias: added to the upper capsules before the squash, [J, D]; None: 0.
        upper: J.
        iterations: T.
        none_of_the_above: the softmax has one more logit, always 0.

    Returns:
        Upper capsules v, [B, J, D].
    """
    matrices = weight.unflatten(2, (upper, -1)).contiguous()
    first_logits = u.new_zeros(u.shape[1], upper) if priors is None else priors.t().contiguous()
    biases = u.new_zeros(matrices.shape[2:]) if bias is None else bias
    with torch.cuda.device_of(u):
        v: Tensor = _FusedRouting.apply(
            u.contiguous(), matrices, first_logits, biases, iterations, none_of_the_above
        )
    return v


class _FusedRouting(torch.autograd.Function):
    """`route` of u [B, I, E] and W [I, E, J, D], with first logits [I, J] and biases [J, D]."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, first_logits: Tensor, bias: Tensor, iterations: int, none: bool
    ) -> Tensor:
        (batch, lower, _), (upper, upper_dim) = u.shape, bias.shape
        logits = u.new_empty(iterations - 1, batch, lower, upper)  # after the first iteration
        s, v = u.new_empty(2, iterations, batch, upper, upper_dim)
        sums = u.new_empty(triton.cdiv(lower, CHUNK), batch, upper, upper_dim)
        for t in range(iterations):
            is_first = t == 0
            before = first_logits if t <= 1 else logits[t - 2]
            routing_kernels.route_once[_grid(u)](
                u=u,
                weight=weight,
                logits=before,
                **_strides(before),
                v=v[max(t - 1, 0)],
                next_logits=None if is_first else logits[t - 1],
                sums=sums,
                **_sizes(u, weight),
                is_first=is_first,
                none_of_the_above=none,
                chunk=CHUNK,
                **tiles(*weight.shape[1:]),
            )
            torch.sum(sums, 0, out=s[t])
            s[t] += bias
            v[t] = squash(s[t])
        ctx.none = none
        ctx.save_for_backward(u, weight, first_logits, logits, s, v)
        return v[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, first_logits, logits, s, v = ctx.saved_tensors
        iterations, batch, upper, upper_dim = s.shape
        lower = u.shape[1]
        grad_s, grad_v = torch.empty_like(s), given
        grad_logits = u.new_empty(iterations + 1, batch, lower, upper)
        grad_logits[iterations] = 0
        sums = u.new_empty(triton.cdiv(lower, CHUNK), batch, upper, upper_dim)
        first = 0 if ctx.needs_input_grad[2] else 1
        for t in reversed(range(iterations)):
            grad_s[t] = _through_squash(s[t], grad_v)
            if t >= first:
                current = first_logits if t == 0 else logits[t - 1]
                routing_kernels.gradients_of_iteration[_grid(u)](
                    u=u,
                    weight=weight,
                    logits=current,
                    **_strides(current),
                    grad_s=grad_s[t],
                    grad_next_logits=grad_logits[t + 1],
                    grad_logits=grad_logits[t],
                    sums=sums,
                    **_sizes(u, weight),
                    none_of_the_above=ctx.none,
                    chunk=CHUNK,
                    **tiles(*weight.shape[1:]),
                )
                grad_v = sums.sum(0)
        grad_u, grad_weight = torch.empty_like(u), torch.empty_like(weight)
        routing_kernels.gradients_of_factors[(lower,)](
            u=u,
            weight=weight,
            first_logits=first_logits,
            **_strides(first_logits),
            logits=logits,
            v=v,
            grad_s=grad_s,
            grad_logits=grad_logits[1:],
            grad_u=grad_u,
            grad_weight=grad_weight,
            **_sizes(u, weight),
            iterations=iterations,
            none_of_the_above=ctx.none,
            **tiles(*weight.shape[1:]),
        )
        grad_first_logits = None if first else grad_logits[0].sum(0)
        return grad_u, grad_weight, grad_first_logits, grad_s.sum((0, 1)), None, None


def _through_squash(s: Tensor, grad_v: Tensor) -> Tensor:
    """Gradient by s of v = s f(|s|^2), [B, J, D]: f grad_v + 2 f' (s . grad_v) s."""
    sq = s.square().sum(dim=-1, keepdim=True)
    per_length = (sq + SQUASH_EPSILON).rsqrt()
    share = sq / (1 + sq)
    slope = per_length / (1 + sq).square() - 0.5 * share * per_length**3
    return share * per_length * grad_v + 2 * slope * (s * grad_v).sum(dim=-1, keepdim=True) * s


def _grid(u: Tensor) -> tuple[int, int]:
    """One program for each tile of images and each chunk of lower capsules."""
    return triton.cdiv(u.shape[0], IMAGES), triton.cdiv(u.shape[1], CHUNK)


def _strides(logits: Tensor) -> dict[str, int]:
    """Of images and of lower capsules, in [B, I, J] or, the same for all images, [I, J]."""
    stride_b = 0 if logits.ndim == 2 else logits.stride(0)
    return {"stride_b": stride_b, "stride_i": logits.stride(-2)}


def _sizes(u: Tensor, weight: Tensor) -> dict[str, int]:
    """Of the tensors."""
    (batch, lower, lower_dim), (upper, upper_dim) = u.shape, weight.shape[2:]
    return {
        "batch": batch,
        "lower": lower,
        "upper": upper,
        "lower_dim": lower_dim,
        "upper_dim": upper_dim,
    }


def tiles(lower_dim: int, upper: int, upper_dim: int) -> dict[str, Any]:
    """How the kernels are launched."""
    return {
        "image_tile": IMAGES,
        "upper_tile": triton.next_power_of_2(upper),
        "lower_dim_tile": max(triton.next_power_of_2(lower_dim), SMALLEST_FACTOR),
        "upper_dim_tile": max(triton.next_power_of_2(upper_dim), SMALLEST_FACTOR),
        "num_warps": WARPS,
        "enable_fp_fusion": True,
    }
