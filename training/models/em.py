"""EM routing of *Matrix Capsules with EM Routing* (Hinton, Sabour, Frosst 2018), Procedure 1.

https://openreview.net/forum?id=HJWLfGWRb

An upper capsule, a parent, is a Gaussian; the votes of the lower ones, its children, are the data. The M-step
fits each parent to the votes that are assigned to it, the E-step assigns each child anew to all parents that
it reaches: of every type, and at every position whose receptive field it lies in.
"""

# B batch, S child positions, I child types, P parent positions, K child positions in a receptive field,
# N = K * I children of a parent, J parent types, H pose elements, Q parent positions that a child reaches

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NOWHERE = -1e30  # log of what a parent that is not there gets; finite, so that nothing becomes NaN


@dataclass(frozen=True)
class EMConstants:
    """What the paper leaves open, as the official code has it; and in what that code is not the paper.

    Attributes:
        inverse_temperature: lambda of Eq. 2 grows towards this from iteration to iteration,
        inverse_temperature_decay: by 1 - decay ** (iteration + 1) of it.
        variance_floor: added to each variance: a parent with one child would have none.
        mass_floor: added where a mean is divided by the mass that is assigned to a parent.
        activation_cost: beta_a is learned in units of so many nats. A parent's cost grows with the children
            that it explains, to hundreds and thousands, where steps of Adam would never get it otherwise.
        mean_inertia: of a mean so much stays from the iteration before, of the first from 0.
        cost_scale: of what a parent's children cost, beside beta_a; 2 is to take log sigma^2 for log sigma.
    """

    inverse_temperature: float = 0.01
    inverse_temperature_decay: float = 0.95
    variance_floor: float = 5e-4
    mass_floor: float = 1e-7
    activation_cost: float = 5000.0
    mean_inertia: float = 0.0
    cost_scale: float = 1.0

    def inverse_temperature_in(self, iteration: int) -> float:
        """Lambda in an iteration, counted from 0."""
        return self.inverse_temperature * (1 - self.inverse_temperature_decay ** (iteration + 1))


OFFICIAL = EMConstants(mean_inertia=0.1, cost_scale=2.0)
OFFICIAL_OF_CLASSES = replace(OFFICIAL, mass_floor=1e-5)


class Capsules(NamedTuple):
    """Capsules at some positions.

    Attributes:
        poses: [B, S, I, H].
        activations: probability that the entity is there, [B, S, I].
    """

    poses: Tensor
    activations: Tensor


class ReceptiveFields(nn.Module):
    """Which child positions each parent position sees, and so which parents each child reaches."""

    inside: Tensor
    reached: Tensor
    counts: Tensor

    def __init__(self, children: Tensor, positions: int):
        """Turn the relation round.

        Args:
            children: the child positions in each receptive field, int64 [P, K], on the CPU: they are read.
            positions: S.
        """
        super().__init__()
        places: list[list[int]] = [[] for _ in range(positions)]
        for place, child in enumerate(children.flatten().tolist()):
            places[child].append(place)
        most = max(map(len, places))
        nowhere = children.numel()  # the index behind the last
        padded = [some + [nowhere] * (most - len(some)) for some in places]
        self.register_buffer("inside", children, persistent=False)  # [P, K]
        self.register_buffer("reached", torch.tensor(padded), persistent=False)  # [S, Q], of P * K
        self.register_buffer("counts", torch.tensor(list(map(len, places))), persistent=False)  # [S]

    @staticmethod
    def sliding(size: int, kernel: int, stride: int) -> "ReceptiveFields":
        """Those of a convolution without padding over size x size positions, row by row."""
        starts = torch.arange(0, size - kernel + 1, stride, device="cpu")
        along = starts[:, None] + torch.arange(kernel, device="cpu")  # [rows, kernel]
        children = along[:, None, :, None] * size + along[None, :, None, :]
        return ReceptiveFields(children.flatten(2).flatten(0, 1), size**2)

    @staticmethod
    def everything(positions: int) -> "ReceptiveFields":
        """One parent position that sees all."""
        return ReceptiveFields(torch.arange(positions, device="cpu")[None], positions)

    @property
    def positions(self) -> int:
        """P."""
        return len(self.inside)

    def seen(self, x: Tensor) -> Tensor:
        """What each parent sees: [B, S, I, ...] to [B, P, N, ...]."""
        return self.at(x).flatten(2, 3)

    def at(self, x: Tensor) -> Tensor:
        """The same by position, [B, P, K, I, ...]."""
        return _gather(x, self.inside)

    def over_parents(self, logs: Tensor) -> Tensor:
        """For each child in each field the log of a sum over all parent positions that the child reaches.

        Args:
            logs: of each child in each field, summed over parent types by now, [B, P, N].

        Returns:
            [B, P, N]; the same wherever the same child is seen.
        """
        fields = self.inside.numel()
        types = logs.shape[2] // self.inside.shape[1]
        places = logs.reshape(-1, fields, types)  # [B, P * K, I]
        places = F.pad(places, (0, 0, 0, 1), value=NOWHERE)
        totals = _gather(places, self.reached).logsumexp(dim=2)  # [B, S, I]
        return self.seen(totals)

    def equal_shares(self) -> Tensor:
        """What each child gives to each parent position before anything is known, [P, K]."""
        return 1 / self.counts[self.inside]


class EMRouting(nn.Module):
    """Fit parents to their children's votes (Procedure 1); the loop is Python's, so export unrolls it."""

    def __init__(
        self,
        types: int,
        iterations: int,
        constants: EMConstants | None = None,
        mixing_proportions: bool = False,
    ):
        """Set the parameters of routing.

        Args:
            types: J; each has a beta_u and a beta_a of its own, at first 0.
            iterations: M-steps, at least 1, with an E-step between any two.
            constants: see there; None: the official code's.
            mixing_proportions: a parent's activation is its share of all that is assigned to the parents,
                as in a mixture of Gaussians, not Eq. 2 (the ablation of Sec. 5).

        Raises:
            ValueError: iterations < 1.
        """
        super().__init__()
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {iterations}")
        self.types, self.iterations = types, iterations
        self.constants = constants or EMConstants()
        self.mixing_proportions = mixing_proportions
        if not mixing_proportions:  # which cost nothing
            self.beta_u = nn.Parameter(torch.zeros(types))
            self.beta_a = nn.Parameter(torch.zeros(types))

    def forward(self, votes: Tensor, activations: Tensor, fields: ReceptiveFields) -> Capsules:
        """Votes of each child for each parent that sees it to parents.

        Args:
            votes: [B, P, J, N, H].
            activations: of the children, [B, P, N].
            fields: who sees whom.

        Returns:
            Parents at P positions of J types.
        """
        for step in self.steps(votes, activations, fields):
            _, mean, log_activations = step  # none but the last are kept
        return Capsules(mean, log_activations.exp())

    def steps(
        self, votes: Tensor, activations: Tensor, fields: ReceptiveFields
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Route, and show each iteration; the arguments are those of `forward`.

        Yields:
            The assignments that an M-step begins with, [B, P, J, N], or in the first iteration [P, 1, N], the
            same for all examples and types; then the parents' means [B, P, J, H] and log activations
            [B, P, J] that it fits.
        """
        types = votes.shape[3] // fields.inside.shape[1]
        assignments = self.initial_assignments(fields, types)[:, None]  # [P, 1, N]
        mean = None
        for iteration in range(self.iterations):
            mass = assignments * activations.unsqueeze(2)  # [B, P, J, N], R of the paper's line 2
            mean, variance, squares, log_activations = self._fit(mass, votes, mean, iteration)
            yield assignments, mean, log_activations
            if iteration < self.iterations - 1:
                assignments = _assign(squares, variance, log_activations, fields)

    def initial_assignments(self, fields: ReceptiveFields, children_types: int) -> Tensor:
        """Each child shared out equally to all parents that it reaches, [P, N]; the same for all types."""
        share = fields.equal_shares() / self.types  # [P, K]
        return share.repeat_interleave(children_types, dim=1)

    def temperatures(self) -> list[float]:
        """Lambda in each iteration."""
        return [self.constants.inverse_temperature_in(iteration) for iteration in range(self.iterations)]

    def budget(self) -> Tensor:
        """Beta_a, in nats, [J]."""
        return self.constants.activation_cost * self.beta_a

    def _fit(
        self, mass: Tensor, votes: Tensor, before: Tensor | None, iteration: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """M-step: mean and variance [B, P, J, H], squared distances to it, log activations [B, P, J].

        What the mean was before, if it was anything, matters only where it has inertia.
        """
        total = mass.sum(dim=3, keepdim=True)  # [B, P, J, 1]
        weights = (mass / (total + self.constants.mass_floor)).unsqueeze(3)  # [B, P, J, 1, N]
        mean = weights @ votes  # [B, P, J, 1, H]
        if inertia := self.constants.mean_inertia:
            mean = (1 - inertia) * mean + (0 if before is None else inertia * before.unsqueeze(3))
        squares = (votes - mean).square()  # [B, P, J, N, H]
        variance = (weights @ squares).squeeze(3) + self.constants.variance_floor
        log_activations = self._activate(total.squeeze(3), variance, iteration)
        return mean.squeeze(3), variance, squares, log_activations

    def _activate(self, total: Tensor, variance: Tensor, iteration: int) -> Tensor:
        """Log of a parent's activation: Eq. 2, or its share of what is assigned to the parents."""
        if self.mixing_proportions:
            mass = total + self.constants.mass_floor
            return mass.log() - mass.sum(dim=(1, 2), keepdim=True).log()
        per_child = variance.shape[3] * self.beta_u + 0.5 * variance.log().sum(dim=3)  # over all elements
        costs = self.constants.cost_scale * per_child * total
        return F.logsigmoid(self.constants.inverse_temperature_in(iteration) * (self.budget() - costs))


def _gather(x: Tensor, places: Tensor) -> Tensor:
    """What lies at places [M, Q] of x [B, S, ...], [B, M, Q, ...]: x[:, places], but a single ONNX node."""
    return x.index_select(1, places.flatten()).unflatten(1, places.shape)


def _assign(squares: Tensor, variance: Tensor, log_activations: Tensor, fields: ReceptiveFields) -> Tensor:
    """E-step: the share of each child that each parent gets, [B, P, J, N]; a child's sum to 1."""
    precision = (0.5 / variance).unsqueeze(4)  # [B, P, J, H, 1]
    log_norm = 0.5 * (variance.log().sum(dim=3, keepdim=True) + variance.shape[3] * math.log(2 * math.pi))
    log_density = -(squares @ precision).squeeze(4) - log_norm  # [B, P, J, N]
    joint = log_activations.unsqueeze(3) + log_density
    totals = fields.over_parents(joint.logsumexp(dim=2))  # [B, P, N]
    return (joint - totals.unsqueeze(2)).exp()
