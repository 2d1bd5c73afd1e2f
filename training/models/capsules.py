"""Capsules of *Dynamic Routing Between Capsules* (Sabour, Frosst, Hinton 2017): squash, routing, layers.

https://arxiv.org/abs/1710.09829
"""

# B batch, I lower capsules, J upper capsules, E lower pose, D upper pose, T capsule types
# u_hat is kept as [B, J, I, D]: both sums of routing are then matrix products that need no copy.

from typing import NamedTuple

import torch
from torch import Tensor, nn

from export.contract.architecture import SQUASH_EPSILON
from training.models.convolution import Convolution
from training.models.graph_names import name_in_graph

VOTE_WEIGHT_STD = 0.1  # of the official code; 1.0 saturates the squash, 0.01 stalls early


class Classified(NamedTuple):
    """A capsule network's answers to images.

    Attributes:
        poses: of the class capsules, [B, J, D].
        probabilities: of each class, independently, 0 to 1, [B, J].
    """

    poses: Tensor
    probabilities: Tensor


def squash(s: Tensor) -> Tensor:
    """Shrink s to length |s|^2 / (1 + |s|^2), same direction (Eq. 1); poses lie in the last axis."""
    sq = s.square().sum(dim=-1, keepdim=True)
    return s * (sq / (1 + sq) / (sq + SQUASH_EPSILON).sqrt())  # epsilon: sqrt has no gradient at 0


class RoutingByAgreement(nn.Module):
    """Combine predictions by agreement (Procedure 1); the loop is Python's, so export unrolls it."""

    def __init__(
        self,
        iterations: int,
        none_of_the_above: bool = False,
        priors: Tensor | None = None,
        bias: Tensor | None = None,
    ):
        """Set the parameters of routing.

        Args:
            iterations: of routing, at least 1.
            none_of_the_above: the softmax has one more logit, always 0, that no upper capsule receives.
            priors: initial logits, learned, [J, I]; None means 0, all upper capsules equally likely.
            bias: added to the upper capsules before the squash, learned, [J, D]; None means 0.

        Raises:
            ValueError: iterations < 1.
        """
        super().__init__()
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        self.iterations = iterations
        self.none_of_the_above = none_of_the_above
        self.priors = nn.Parameter(priors) if priors is not None else None
        self.bias = nn.Parameter(bias) if bias is not None else None

    def forward(self, u_hat: Tensor) -> Tensor:
        """Predictions u_hat by each lower capsule, [B, J, I, D], to upper capsules v, [B, J, D]."""
        b = self.first_logits(u_hat)  # [J, I]
        for iteration in range(1, self.iterations + 1):
            c = self.couple(b)
            s = self.weighted_sum(c, u_hat)  # [B, J, D]
            v = squash(s if self.bias is None else s + self.bias)
            name_in_graph(b=b, c=c, s=s, v=v)
            if iteration < self.iterations:  # the last logits are not used
                a = self.agreement(u_hat, v)  # [B, J, I]
                name_in_graph(a=a)
                b = b + a  # from here on, each example has its own logits
        return v

    def first_logits(self, u_hat: Tensor) -> Tensor:
        """Learned, or 0: [J, I]."""
        return u_hat.new_zeros(u_hat.shape[1:3]) if self.priors is None else self.priors

    def weighted_sum(self, c: Tensor, u_hat: Tensor) -> Tensor:
        """Coupling coefficients [..., J, I] to s, [B, J, D] (Eq. 2)."""
        return (c.unsqueeze(-2) @ u_hat).squeeze(-2)

    def agreement(self, u_hat: Tensor, v: Tensor) -> Tensor:
        """How well each prediction agrees with each upper capsule, [B, J, I]."""
        return (u_hat @ v.unsqueeze(-1)).squeeze(-1)

    def couple(self, b: Tensor) -> Tensor:
        """Logits to coupling coefficients (Eq. 3), [..., J, I]; the softmax is over the upper capsules."""
        if not self.none_of_the_above:
            return b.softmax(dim=-2)
        with_none = nn.functional.pad(b, (0, 0, 0, 1))  # [..., J + 1, I]
        return with_none.softmax(dim=-2)[..., :-1, :]


class PrimaryCapsules(nn.Module):
    """A convolution whose channels are read as capsule types times pose elements, squashed."""

    def __init__(
        self,
        in_channels: int,
        types: int,
        pose_dim: int,
        kernel_size: int = 9,
        stride: int = 2,
        coupled: bool = False,
    ):
        """Build the convolution.

        Args:
            in_channels: of the feature maps.
            types: capsule types.
            pose_dim: pose elements of a capsule.
            kernel_size: height and width of a kernel, pixels.
            stride: along both axes.
            coupled: the maps are one capsule that is routed to all types in one iteration, so that each gets
                an equal share of what is convolved, and the bias in full (official code).
        """
        super().__init__()
        self.pose_dim = pose_dim
        share = 1 / types if coupled else 1.0
        self.conv = Convolution(in_channels, types * pose_dim, kernel_size, stride, share)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, C, H, W] to capsules [B, I, E], I = types * rows * columns, float32."""
        primary = self.conv(x).float()  # [B, T * E, rows, columns]
        # Types and pose elements must part before pixels join, or capsules would mix pixels.
        s = primary.unflatten(1, (-1, self.pose_dim)).flatten(3).transpose(2, 3).flatten(1, 2)
        u = squash(s)
        name_in_graph(s=s, u=u)
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
        self.weight = nn.Parameter(torch.randn(lower, lower_dim, upper * upper_dim) * VOTE_WEIGHT_STD)
        self.routing = RoutingByAgreement(
            iterations,
            none_of_the_above,
            torch.zeros(upper, lower) if learned_priors else None,
            torch.zeros(upper, upper_dim) if bias else None,
        )

    def forward(self, u: Tensor) -> Tensor:
        """Lower capsules [B, I, E] to upper capsules v [B, J, D]; float32 also under autocast."""
        if torch.is_autocast_enabled(u.device.type):  # half precision is too coarse for the logits
            with torch.autocast(u.device.type, enabled=False):
                return self.forward(u.float())
        u_hat = self.votes(u)
        v: Tensor = self.routing(u_hat)
        return v

    def votes(self, u: Tensor) -> Tensor:
        """Predictions u_hat_j|i = W_ij u_i: [B, I, E] to [B, J, I, D]."""
        votes = u.transpose(0, 1) @ self.weight  # [I, B, J * D]
        u_hat = votes.unflatten(2, (self.upper, self.upper_dim)).permute(1, 2, 0, 3).contiguous()
        name_in_graph(u_hat=u_hat)
        return u_hat
