"""The predictions of lower capsules, kept as their two factors and never computed as a whole.

The predictions u_hat_j|i = W_ij u_i of 128 MNIST images take 94 MB, which routing would read five times, and
as often again for gradients. It needs only two things of them, which come from the factors u and W (9 times
smaller) in one pass over both:

    s_j  = sum over i of c_ij u_hat_j|i = sum over i, e of (c_ij u_ie) W_ije      weighted sum
    a_ij = u_hat_j|i . v_j              = sum over e of u_ie (W_ije . v_j)        agreement

Both are derivatives of one form, f = sum of c_ij u_ie W_ijed v_jd, the first by v and the second by c. So
their gradients are its second derivatives, and made of the same sums.
"""

# B batch, I lower capsules in N blocks of L = 16, J upper capsules, E lower pose, D upper pose

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from training.models.cpu.compiled_calls import as_arrays, in_parts
from training.models.cpu.lanes import ELEMENTS, LANES
from training.models.cpu.vote_kernels import agree, differentiate, sum_weighted


@dataclass(frozen=True)
class FactoredVotes:
    """Predictions as their factors, float32 on the CPU, with zeros where there is no capsule or element.

    Attributes:
        u: [N, B, E, L], lower capsule i in block i // 16, at i % 16.
        weight: [J, N, E, 16, L].
        lower: I.
        upper_dim: D, at most 16.
    """

    u: Tensor
    weight: Tensor
    lower: int
    upper_dim: int

    @staticmethod
    def of(u: Tensor, weight: Tensor, upper: int) -> "FactoredVotes":
        """From lower capsules [B, I, E] and the matrices of all pairs [I, E, J * D]."""
        matrices = weight.unflatten(2, (upper, -1))
        lower, upper_dim = len(weight), matrices.shape[3]
        more = -lower % LANES
        matrices = F.pad(matrices, (0, ELEMENTS - upper_dim, 0, 0, 0, 0, 0, more)).unflatten(0, (-1, LANES))
        blocks = F.pad(u, (0, 0, 0, more)).unflatten(1, (-1, LANES))
        return FactoredVotes(
            blocks.permute(1, 0, 3, 2).contiguous(),
            matrices.permute(3, 0, 2, 4, 1).contiguous(),
            lower,
            upper_dim,
        )

    def weighted_sum(self, c: Tensor) -> Tensor:
        """Coupling coefficients [B, J, I] or [J, I] to s, [B, J, D]."""
        blocks = F.pad(c, (0, -self.lower % LANES)).unflatten(-1, (-1, LANES))
        s: Tensor = _WeightedSum.apply(blocks.expand(self.u.shape[1], -1, -1, -1), self.u, self.weight)
        return s[..., : self.upper_dim]

    def agreement(self, v: Tensor) -> Tensor:
        """Upper capsules [B, J, D] to a, [B, J, I]."""
        a: Tensor = _Agreement.apply(F.pad(v, (0, ELEMENTS - self.upper_dim)), self.u, self.weight)
        return a.flatten(2)[..., : self.lower]


class _WeightedSum(torch.autograd.Function):
    """df/dv, [B, J, 16], of c [B, J, N, L], u and W."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, u: Tensor, weight: Tensor) -> Tensor:
        c = c.contiguous()
        ctx.save_for_backward(c, u, weight)
        return _by_upper(c, u, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c, u, weight = ctx.saved_tensors
        return _by_others(c, u, weight, ds.contiguous())


class _Agreement(torch.autograd.Function):
    """df/dc, [B, J, N, L], of v [B, J, 16], u and W."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, u: Tensor, weight: Tensor) -> Tensor:
        v = v.contiguous()
        ctx.save_for_backward(v, u, weight)
        a = u.new_empty(*v.shape[:2], len(u), LANES)
        arrays = as_arrays(u, weight, v, a)
        in_parts(len(u), lambda blocks: agree(blocks, *arrays))
        return a

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, da: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, u, weight = ctx.saved_tensors
        da = da.contiguous()
        _, du, dweight = _by_others(da, u, weight, v)
        return _by_upper(da, u, weight), du, dweight


def _by_upper(c: Tensor, u: Tensor, weight: Tensor) -> Tensor:
    """df/dv, [B, J, 16]."""
    s = u.new_empty(*c.shape[:2], ELEMENTS)
    arrays = as_arrays(c, u, weight, s)
    in_parts(len(c), lambda images: sum_weighted(images, *arrays))
    return s


def _by_others(c: Tensor, u: Tensor, weight: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """df/dc, df/du and df/dW."""
    gradients = torch.empty_like(c), torch.empty_like(u), torch.empty_like(weight)
    arrays = as_arrays(c, u, weight, v, *gradients)
    in_parts(len(u), lambda blocks: differentiate(blocks, *arrays))
    return gradients
