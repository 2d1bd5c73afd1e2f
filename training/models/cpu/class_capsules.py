"""Class capsules that route without writing their votes down when they are trained on a CPU."""

# B batch, I lower capsules, J upper capsules, E lower pose, D upper pose

from torch import Tensor

from training.models.capsules import ClassCapsules, RoutingByAgreement
from training.models.cpu.cpu_training import trained_on_cpu
from training.models.cpu.factored_votes import FactoredVotes
from training.models.cpu.lanes import ELEMENTS


class CpuClassCapsules(ClassCapsules):
    """Class capsules whose routing is a `CpuRouting`."""

    def forward(self, u: Tensor) -> Tensor:
        """Lower capsules [B, I, E] to upper capsules v [B, J, D]."""
        if not trained_on_cpu(u) or self.upper_dim > ELEMENTS:
            return super().forward(u)
        v: Tensor = self.routing(FactoredVotes.of(u, self.weight, self.upper))
        return v


class CpuRouting(RoutingByAgreement):
    """Routing of votes that are either written down, [B, J, I, D], or left as their factors."""

    def first_logits(self, u_hat: Tensor | FactoredVotes) -> Tensor:
        """[J, I]."""
        if self.priors is None and isinstance(u_hat, FactoredVotes):
            return u_hat.u.new_zeros(len(u_hat.weight), u_hat.lower)
        return super().first_logits(u_hat)  # type: ignore[arg-type]  # priors ask nothing of the votes

    def weighted_sum(self, c: Tensor, u_hat: Tensor | FactoredVotes) -> Tensor:
        """Coupling coefficients [..., J, I] to s, [B, J, D]."""
        if isinstance(u_hat, FactoredVotes):
            return u_hat.weighted_sum(c)
        return super().weighted_sum(c, u_hat)

    def agreement(self, u_hat: Tensor | FactoredVotes, v: Tensor) -> Tensor:
        """[B, J, I]."""
        if isinstance(u_hat, FactoredVotes):
            return u_hat.agreement(v)
        return super().agreement(u_hat, v)
