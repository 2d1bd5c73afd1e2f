"""The predictions of lower capsules, kept as their two factors and never computed as a whole.

The predictions u_hat_j|i = W_ij u_i of 128 MNIST images take 94 MB, which routing would read five times, and
as often again for gradients. It needs only two things of them, which come from the factors u and W (24 times
smaller) in one product for each j:

    s_j  = sum over i of c_ij u_hat_j|i = sum over i, e of (c_ij u_ie) W_ije      weighted sum
    a_ij = u_hat_j|i . v_j              = sum over e of u_ie (W_ije . v_j)        agreement

Both are derivatives of one form, f = sum of c_ij u_ie W_ijed v_jd, the first by v and the second by c. So
their gradients are its second derivatives, and made of the same two products.
"""

# B batch, I lower capsules, J upper capsules, E lower pose, D upper pose

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class FactoredVotes:
    """Predictions as u, [B, E, I], and W, [J, E, I, D], both contiguous.

    With I behind E, all that is done element by element runs along a long axis.
    """

    u: Tensor
    weight: Tensor

    @staticmethod
    def of(u: Tensor, weight: Tensor, upper: int) -> "FactoredVotes":
        """From lower capsules [B, I, E] and the matrices of all pairs [I, E, J * D]."""
        matrices = weight.unflatten(2, (upper, -1)).permute(2, 1, 0, 3)
        return FactoredVotes(u.transpose(1, 2).contiguous(), matrices.contiguous())

    def weighted_sum(self, c: Tensor) -> Tensor:
        """Coupling coefficients [B, J, I] or [J, I] to s, [B, J, D]."""
        s: Tensor = _WeightedSum.apply(c.expand(len(self.u), -1, -1), self.u, self.weight)
        return s

    def agreement(self, v: Tensor) -> Tensor:
        """Upper capsules [B, J, D] to a, [B, J, I]."""
        a: Tensor = _Agreement.apply(v, self.u, self.weight)
        return a


class _WeightedSum(torch.autograd.Function):
    """df/dv, [B, J, D], of c [B, J, I], u [B, E, I] and W [J, E, I, D]."""

    @staticmethod
    def forward(ctx: Any, c: Tensor, u: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(c, u, weight)
        s = u.new_empty(len(u), len(weight), weight.shape[3])
        weighted = torch.empty_like(u)
        for j, w in enumerate(weight.flatten(1, 2)):  # [E * I, D]
            torch.mul(u, c[:, j, None], out=weighted)
            s[:, j] = weighted.flatten(1) @ w
        return s

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        c, u, weight = ctx.saved_tensors
        dc = u.new_empty(c.shape) if ctx.needs_input_grad[0] else None
        du, dweight = torch.zeros_like(u), torch.empty_like(weight)
        work = torch.empty_like(u)
        for j, w in enumerate(weight.flatten(1, 2)):
            torch.mul(u, c[:, j, None], out=work)
            torch.mm(work.flatten(1).mT, ds[:, j], out=dweight[j].view_as(w))
            torch.mm(ds[:, j], w.mT, out=work.flatten(1))
            du.addcmul_(work, c[:, j, None])
            if dc is not None:
                dc[:, j] = work.mul_(u).sum(dim=1)
        return dc, du, dweight


class _Agreement(torch.autograd.Function):
    """df/dc, [B, J, I], of v [B, J, D], u [B, E, I] and W [J, E, I, D]."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, u: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(v, u, weight)
        a = u.new_empty(len(u), len(weight), u.shape[2])
        work = torch.empty_like(u)
        for j, w in enumerate(weight.flatten(1, 2)):
            torch.mm(v[:, j], w.mT, out=work.flatten(1))
            a[:, j] = work.mul_(u).sum(dim=1)
        return a

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, da: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, u, weight = ctx.saved_tensors
        dv, du, dweight = torch.empty_like(v), torch.zeros_like(u), torch.empty_like(weight)
        work = torch.empty_like(u)
        for j, w in enumerate(weight.flatten(1, 2)):
            torch.mm(v[:, j], w.mT, out=work.flatten(1))
            du.addcmul_(work, da[:, j, None])
            torch.mul(u, da[:, j, None], out=work)
            dv[:, j] = work.flatten(1) @ w
            torch.mm(work.flatten(1).mT, v[:, j], out=dweight[j].view_as(w))
        return dv, du, dweight
