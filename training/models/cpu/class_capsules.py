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
    """Class capsules that leave their votes as factors, where their routing is a `CpuRouting`."""

    def forward(self, u: Tensor) -> Tensor:
        """Lower capsules [B, I, E] to upper capsules v [B, J, D]."""
        takes_factors = isinstance(self.routing, CpuRouting)  # a class of its own does not
        if not takes_factors or not trained_on_cpu(u) or self.upper_dim > LONGEST_POSE:
            return super().forward(u)
        from training.models.cpu.factored_votes import FactoredVotes  # numba takes a second to import

        self.check_lower_capsules(u)
        v: Tensor = self.routing(FactoredVotes.of(u, self.weight, self.upper))
        return v

    def check_lower_capsules(self, u: Tensor) -> None:
        """Raise unless the lower capsules [B, I, E] are those of the weights: kernels look at no bounds.

        Raises:
            ValueError: there are more or fewer of them, or their poses have another length.
        """
        lower, lower_dim, _ = self.weight.shape
        if u.shape[1:] != (lower, lower_dim):
            raise ValueError(
                f"the network has {lower} primary capsules of {lower_dim} dimensions, an image "
                f"makes {u.shape[1]} of {u.shape[2]}: it has another size"
            )


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
