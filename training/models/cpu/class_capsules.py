"""Class capsules that route without writing their votes down when they are trained on a CPU."""

# B batch, I lower capsules, J upper capsules, E lower pose, D upper pose

from typing import TYPE_CHECKING

from torch import Tensor

from training.models.capsules import ClassCapsules, RoutingByAgreement
from training.models.cpu.cpu_training import trained_on_cpu

if TYPE_CHECKING:
    from training.models.cpu.factored_votes import FactoredVotes

LONGEST_POSE = 16  # elements of an upper capsule that vote_kernels.py sums at once


class CpuClassCapsules(ClassCapsules):
    """Class capsules whose routing is a `CpuRouting`."""

    def forward(self, u: Tensor) -> Tensor:
        """Lower capsules [B, I, E] to upper capsules v [B, J, D]."""
        if not trained_on_cpu(u) or self.upper_dim > LONGEST_POSE:
            return super().forward(u)
        from training.models.cpu.factored_votes import FactoredVotes  # numba takes a second to import

        v: Tensor = self.routing(FactoredVotes.of(u, self.weight, self.upper))
        return v


class CpuRouting(RoutingByAgreement):
    """Routing of votes that are either written down, [B, J, I, D], or left as their factors."""

    def first_logits(self, u_hat: "Tensor | FactoredVotes") -> Tensor:
        """[J, I]."""
        if isinstance(u_hat, Tensor):
            return super().first_logits(u_hat)
        return u_hat.u.new_zeros(len(u_hat.weight), u_hat.lower) if self.priors is None else self.priors

    def weighted_sum(self, c: Tensor, u_hat: "Tensor | FactoredVotes") -> Tensor:
        """Coupling coefficients [..., J, I] to s, [B, J, D]."""
        return super().weighted_sum(c, u_hat) if isinstance(u_hat, Tensor) else u_hat.weighted_sum(c)

    def agreement(self, u_hat: "Tensor | FactoredVotes", v: Tensor) -> Tensor:
        """[B, J, I]."""
        return super().agreement(u_hat, v) if isinstance(u_hat, Tensor) else u_hat.agreement(v)
