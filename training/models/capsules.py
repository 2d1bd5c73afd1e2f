"""Capsules of *Dynamic Routing Between Capsules* (Sabour, Frosst, Hinton 2017): squash, routing, layers.

https://arxiv.org/abs/1710.09829
"""

# B batch, I lower capsules, J upper capsules, E lower pose, D upper pose, T capsule types
# u_hat is kept as [B, J, I, D]: both sums of routing are then matrix products that need no copy.

import torch
from torch import Tensor, nn

VOTE_WEIGHT_STD = 0.1  # of the official code; 1.0 saturates the squash, 0.01 stalls early


def squash(s: Tensor, eps: float = 1e-7) -> Tensor:
    """Shrink s to length |s|^2 / (1 + |s|^2), same direction (Eq. 1); poses lie in the last axis."""
    sq = s.square().sum(dim=-1, keepdim=True)
    return s * (sq / (1 + sq) / (sq + eps).sqrt())  # eps: sqrt has no gradient at 0


def route(
    u_hat: Tensor,
    iterations: int,
    priors: Tensor | None = None,
    bias: Tensor | None = None,
    none_of_the_above: bool = False,
) -> Tensor:
    """Combine predictions by agreement (Procedure 1).

    Args:
        u_hat: what each lower capsule predicts for each upper one, [B, J, I, D].
        iterations: routing iterations, at least 1; a Python loop, so export unrolls it.
        priors: initial logits, [J, I]; None means 0, all upper capsules equally likely.
        bias: added to the upper capsules before the squash, [J, D]; None means 0.
        none_of_the_above: the softmax has one more logit, always 0, that no upper capsule receives.

    Returns:
        Upper capsules v, [B, J, D], each of length below 1.

    Raises:
        ValueError: iterations < 1.
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    b = torch.zeros_like(u_hat[..., 0])  # [B, J, I] logits, one set per example
    if priors is not None:
        b = b + priors
    v = _weighted_squash(b, u_hat, bias, none_of_the_above)
    for _ in range(iterations - 1):
        a = (u_hat @ v.unsqueeze(-1)).squeeze(-1)  # [B, J, I] agreement
        b = b + a
        v = _weighted_squash(b, u_hat, bias, none_of_the_above)
    return v


def _weighted_squash(b: Tensor, u_hat: Tensor, bias: Tensor | None, none_of_the_above: bool) -> Tensor:
    """One iteration of Procedure 1: logits to coupling coefficients to upper capsules."""
    if none_of_the_above:
        b = nn.functional.pad(b, (0, 0, 0, 1))  # [B, J + 1, I]
    c = b.softmax(dim=1)[:, : u_hat.shape[1]]  # coupling coefficients: over the upper capsules
    s = (c.unsqueeze(-2) @ u_hat).squeeze(-2)  # [B, J, D]
    if bias is not None:
        s = s + bias
    v = squash(s)
    return v


class PrimaryCapsules(nn.Module):
    """A convolution whose channels are read as capsule types times pose elements, squashed."""

    def __init__(self, in_channels: int, types: int, pose_dim: int, kernel_size: int = 9, stride: int = 2):
        super().__init__()
        self.pose_dim = pose_dim
        self.conv = nn.Conv2d(in_channels, types * pose_dim, kernel_size, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, C, H, W] to capsules [B, I, E], I = types * rows * columns, float32."""
        primary = self.conv(x).float()  # [B, T * E, rows, columns]
        # Types and pose elements must part before pixels join, or capsules would mix pixels.
        s = primary.unflatten(1, (-1, self.pose_dim)).flatten(3).transpose(2, 3).flatten(1, 2)
        u = squash(s)
        return u


class ClassCapsules(nn.Module):
    """Fully connected capsules with routing by agreement: DigitCaps of the paper.

    Every pair of a lower and an upper capsule has its own matrix W_ij.
    """

    def __init__(
        self,
        lower: int,
        lower_dim: int,
        upper: int,
        upper_dim: int,
        iterations: int,
        learned_priors: bool = False,
        none_of_the_above: bool = False,
        bias: bool = False,
    ):
        super().__init__()
        self.upper, self.upper_dim = upper, upper_dim
        self.iterations = iterations
        self.none_of_the_above = none_of_the_above
        self.weight = nn.Parameter(torch.randn(lower, lower_dim, upper * upper_dim) * VOTE_WEIGHT_STD)
        self.priors = nn.Parameter(torch.zeros(upper, lower)) if learned_priors else None
        self.bias = nn.Parameter(torch.zeros(upper, upper_dim)) if bias else None

    def forward(self, u: Tensor) -> Tensor:
        """Lower capsules [B, I, E] to upper capsules v [B, J, D]; float32 also under autocast."""
        with torch.autocast(device_type=u.device.type, enabled=False):
            u_hat = self.votes(u.float())
            return route(u_hat, self.iterations, self.priors, self.bias, self.none_of_the_above)

    def votes(self, u: Tensor) -> Tensor:
        """Predictions u_hat_j|i = W_ij u_i: [B, I, E] to [B, J, I, D]."""
        votes = u.transpose(0, 1) @ self.weight  # [I, B, J * D]
        u_hat = votes.unflatten(2, (self.upper, self.upper_dim)).permute(1, 2, 0, 3).contiguous()
        return u_hat
