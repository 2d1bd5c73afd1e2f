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

from training.models.graph_names import name_in_graph

LOGIT_PER_BETA = 10.0  # what beta_a counts of a calibrated logit: a step of Adam of 0.003 moves it by 0.03
NOWHERE = -1e30  # log of what a parent that is not there gets; finite, so that nothing becomes NaN


@dataclass(frozen=True)
class EMConstants:
    """Numbers of EM routing: of the paper's Procedure 1 and, where it gives none, of the official code.

    Attributes:
        inverse_temperature: what lambda of Eq. 2 grows towards: in iteration t, counted from 0, it is
            inverse_temperature * (1 - inverse_temperature_decay ** (t + 1)).
        inverse_temperature_decay: see there.
        variance_floor: added to each variance: a parent with one child would have none.
        mass_floor: added to the mass that is assigned to a parent before a mean is divided by it.
        activation_cost: unit of the learned beta_a, nats. A parent's cost grows with the children that it
            explains, to hundreds and thousands of nats, where steps of Adam would never get beta_a in nats.
        mean_inertia: share of the previous iteration's mean that a mean keeps; before the first that is 0.
            The paper: 0.
        cost_scale: factor of the children's cost, beside beta_a. The paper: 1; the official code, which takes
            log sigma^2 for log sigma: 2.
        density_exponent: power of the Gaussian density in the E-step of Procedure 1, not of the activation
            beside it. The paper: 1. Below 1 it is the inverse temperature of deterministic annealing EM (Ueda
            and Nakano 1998) and makes assignments softer.
    """

    inverse_temperature: float = 0.01
    inverse_temperature_decay: float = 0.95
    variance_floor: float = 5e-4
    mass_floor: float = 1e-7
    activation_cost: float = 5000.0
    mean_inertia: float = 0.0
    cost_scale: float = 1.0
    density_exponent: float = 1.0

    def inverse_temperature_in(self, iteration: int) -> float:
        """Lambda in an iteration, counted from 0."""
        return self.inverse_temperature * (1 - self.inverse_temperature_decay ** (iteration + 1))


# Where the official code does not follow Procedure 1; what is not taken over is named at `official_routing`.
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


class Iteration(NamedTuple):
    """What an iteration of routing makes of the parents, from the assignments that its M-step begins with.

    Attributes:
        assignments: R before it is multiplied by the child's activation, [B, P, J, N]; in the first iteration
            [P, 1, N], the same for all examples and types.
        mass: assigned to each parent, the sum of R times activation over its children, [B, P, J]; in the
            first iteration [B, P, 1]. In exported graphs it is `total`, and `mass` that of each child.
        mean: of each parent, [B, P, J, H].
        variance: of the same, [B, P, J, H].
        log_activations: [B, P, J].
    """

    assignments: Tensor
    mass: Tensor
    mean: Tensor
    variance: Tensor
    log_activations: Tensor


class ActivationTerms(NamedTuple):
    """What activations are made of, beside the children's costs (Eq. 2).

    Attributes:
        inverse_temperatures: lambda in each iteration.
        budget: beta_a in nats, what a parent's cost is held against, [J].
    """

    inverse_temperatures: list[float | Tensor]
    budget: Tensor


class ReceptiveFields(nn.Module):
    """Which child positions each parent position sees, and so which parents each child reaches.

    A slot is a place in one of the fields, numbered p * K + k; a child fills a slot in each field it lies in.

    Attributes:
        inside: the child position in each slot, int64 [P, K].
        reached: the slots that each child position fills, int64 [S, Q]; where there are fewer, P * K in the
            rest, the number of a slot that does not exist.
        counts: how many slots each fills, int64 [S].
    """

    inside: Tensor
    reached: Tensor
    counts: Tensor

    def __init__(self, children: Tensor, positions: int):
        """Find the slots of each child.

        Args:
            children: the child positions in each receptive field, int64 [P, K], on the CPU: they are read.
            positions: S.
        """
        super().__init__()
        slots: list[list[int]] = [[] for _ in range(positions)]
        for slot, child in enumerate(children.flatten().tolist()):
            slots[child].append(slot)
        most = max(map(len, slots))
        padded = [filled + [children.numel()] * (most - len(filled)) for filled in slots]
        self.register_buffer("inside", children, persistent=False)
        self.register_buffer("reached", torch.tensor(padded), persistent=False)
        self.register_buffer("counts", torch.tensor(list(map(len, slots))), persistent=False)

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

    def seen(self, x: Tensor) -> Tensor:
        """What each parent sees: [B, S, I, ...] to [B, P, N, ...]."""
        return self.by_slot(x).flatten(2, 3)

    def by_slot(self, x: Tensor) -> Tensor:
        """The same with positions and types apart: [B, S, I, ...] to [B, P, K, I, ...]."""
        return _gather(x, self.inside)

    def over_parents(self, logs: Tensor) -> Tensor:
        """For each child in each field the log of a sum over all parent positions that the child reaches.

        Args:
            logs: of each child in each field, summed over parent types by now, [B, P, N].

        Returns:
            [B, P, N]; the same wherever the same child is seen.
        """
        slots, types = self.inside.numel(), logs.shape[2] // self.inside.shape[1]
        by_slot = logs.reshape(-1, slots, types)  # [B, P * K, I]
        by_slot = F.pad(by_slot, (0, 0, 0, 1), value=NOWHERE)  # and the slot that does not exist
        totals = _gather(by_slot, self.reached).logsumexp(dim=2)  # [B, S, I]
        return self.seen(totals)

    def equal_shares(self) -> Tensor:
        """What each child gives to each parent position before anything is known, [P, K]."""
        return 1 / self.counts[self.inside]


class EMRouting(nn.Module):
    """Fit parents to their children's votes (Procedure 1); the loop is Python's, so export unrolls it."""

    final_inverse_temperature: Tensor
    budget_offset: Tensor

    def __init__(
        self,
        types: int,
        iterations: int,
        constants: EMConstants | None = None,
        mixing_proportions: bool = False,
        calibrated: bool = False,
    ):
        """Set the parameters of routing.

        Args:
            types: J; each has a beta_u and a beta_a of its own, at first 0. A child costs beta_u once per
                pose element, as in Procedure 1; Eq. 2 counts it once, and has the same beta_a for all.
            iterations: M-steps, at least 1, with an E-step between any two.
            constants: see there; None: the defaults.
            mixing_proportions: a parent's activation is its share of all that is assigned to the parents,
                as in a mixture of Gaussians, not Eq. 2 (the ablation of Sec. 5).
            calibrated: lambda, unit and offset of beta_a are measured by `calibrate`, and are buffers; until
                then lambda and offset are those of the constants.

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
        self.calibrated = calibrated and not mixing_proportions
        if self.calibrated:
            final = self.constants.inverse_temperature_in(iterations - 1)
            self.register_buffer("final_inverse_temperature", torch.tensor(final))
            self.register_buffer("budget_offset", torch.zeros(types))

    def forward(
        self,
        votes: Tensor,
        activations: Tensor,
        fields: ReceptiveFields,
        shares: Tensor,
        terms: ActivationTerms | None = None,
    ) -> Capsules:
        """Votes of each child for each parent that sees it to parents.

        Args:
            votes: [B, P, J, N, H].
            activations: of the children, [B, P, N].
            fields: who sees whom.
            shares: of each child that parents get at first, `initial_assignments`, [P, 1, N].
            terms: of the parents' activations; None: those of this moment.

        Returns:
            Parents at P positions of J types.
        """
        for step in self.steps(votes, activations, fields, shares, terms):
            last = step  # none but the last are kept
        return Capsules(last.mean, last.log_activations.exp())

    def steps(
        self,
        votes: Tensor,
        activations: Tensor,
        fields: ReceptiveFields,
        shares: Tensor,
        terms: ActivationTerms | None = None,
    ) -> Iterator[Iteration]:
        """Route, and show each iteration; the arguments are those of `forward`."""
        terms = terms or self.activation_terms()
        assignments, mean = shares, None
        for iteration in range(self.iterations):
            # R of the paper's line 2, that of each child: [B, P, J, N], in the first iteration [B, P, 1, N].
            mass = assignments * activations.unsqueeze(2)
            name_in_graph(assignments=assignments, mass=mass)
            mean, variance, squares, total, log_activations = self._fit(mass, votes, mean, terms, iteration)
            yield Iteration(assignments, total, mean, variance, log_activations)
            if iteration < self.iterations - 1:
                exponent = self.constants.density_exponent
                assignments = _assign(squares, variance, log_activations, fields, exponent)

    def initial_assignments(self, fields: ReceptiveFields, children_types: int) -> Tensor:
        """Each child shared out equally to all parents that it reaches, [P, 1, N]; the same for all types."""
        share = fields.equal_shares() / self.types  # [P, K]
        return share.repeat_interleave(children_types, dim=1).unsqueeze(1)

    def activation_terms(self) -> ActivationTerms | None:
        """Those of this moment: a calibration changes them. None for mixing proportions, which have none."""
        if self.mixing_proportions:
            return None
        return ActivationTerms(
            [self.inverse_temperature_in(iteration) for iteration in range(self.iterations)], self.budget()
        )

    def inverse_temperature_in(self, iteration: int) -> float | Tensor:
        """Lambda of Eq. 2 in an iteration, counted from 0."""
        if not self.calibrated:
            return self.constants.inverse_temperature_in(iteration)
        return self.final_inverse_temperature * self.share_of_final(iteration)

    def share_of_final(self, iteration: int) -> float:
        """Lambda in an iteration, counted from 0, as a share of that in the last."""
        constants = self.constants
        return constants.inverse_temperature_in(iteration) / constants.inverse_temperature_in(
            self.iterations - 1
        )

    def inverse_temperatures(self) -> list[float]:
        """Lambda in each iteration."""
        return [float(self.inverse_temperature_in(iteration)) for iteration in range(self.iterations)]

    def budget(self) -> Tensor:
        """Beta_a in nats, what a parent's cost is held against (Eq. 2), [J]."""
        if not self.calibrated:
            return self.constants.activation_cost * self.beta_a
        return self.budget_offset + LOGIT_PER_BETA / self.final_inverse_temperature * self.beta_a

    def calibrate(self, costs: Tensor, deviation: float) -> None:
        """Measure lambda of the last iteration, and what budgets begin at.

        Args:
            costs: of the parents of some images in the last iteration, nats, [N, P, J].
            deviation: that the activations' logits get over these images, median over parents.

        Raises:
            ValueError: the costs are the same for all images.
        """
        spread = costs.std(dim=0).median()
        if not spread > 0:
            raise ValueError("the first batch cannot calibrate EM routing: it needs two images that differ")
        self.final_inverse_temperature.copy_(deviation / spread)
        begun = LOGIT_PER_BETA / self.final_inverse_temperature * self.beta_a.detach()  # 0, but officially
        self.budget_offset.copy_(costs.mean(dim=(0, 1)) - begun)

    def follow(self, activations: Tensor, deviation: float, momentum: float) -> None:
        """Move lambda and the budgets towards what a batch of training asks for.

        Towards logits with this deviation over images, median over parents, and with mean 0 for each type.
        Logits count up to 16, and a deviation as at least 0.1, so that no batch moves them far. A parent that
        lies beyond 15 for all images counts as one that varies by 16: lambda then falls, and the budgets can
        come back; as one that does not vary, it would drive lambda up without end.

        Args:
            activations: of the parents in the last iteration, [N, P, J], N at least 2.
            deviation: of the activations' logits.
            momentum: the part of the way, 0 to 1.
        """
        logits = torch.logit(activations.detach(), eps=1e-7)
        saturated = logits.abs().amin(dim=0) > 15
        spread = logits.std(dim=0).masked_fill(saturated, 16).median().clamp(min=0.1)
        self.budget_offset -= momentum * logits.mean(dim=(0, 1)) / self.final_inverse_temperature
        self.final_inverse_temperature *= (deviation / spread) ** momentum

    def _fit(
        self,
        mass: Tensor,
        votes: Tensor,
        before: Tensor | None,
        terms: ActivationTerms | None,
        iteration: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """M-step: mean and variance [B, P, J, H], squared distances to it; mass, log activations.

        What the mean was before, if it was anything, matters only where it has inertia.
        """
        total = mass.sum(dim=3, keepdim=True)  # [B, P, J, 1], in the first iteration [B, P, 1, 1]
        weights = (mass / (total + self.constants.mass_floor)).unsqueeze(3)  # [B, P, J, 1, N]
        mean = weights @ votes  # [B, P, J, 1, H]
        if inertia := self.constants.mean_inertia:
            mean = (1 - inertia) * mean + (0 if before is None else inertia * before.unsqueeze(3))
        squares = (votes - mean).square()  # [B, P, J, N, H]
        variance = (weights @ squares).squeeze(3) + self.constants.variance_floor
        mass_of_parents = total.squeeze(3)
        log_activations = self._activate(mass_of_parents, variance, terms, iteration)
        name_in_graph(total=total, weights=weights, mean=mean, squares=squares)
        name_in_graph(variance=variance, log_activations=log_activations)
        return mean.squeeze(3), variance, squares, mass_of_parents, log_activations

    def _activate(
        self, total: Tensor, variance: Tensor, terms: ActivationTerms | None, iteration: int
    ) -> Tensor:
        """Log of a parent's activation, [B, P, J]: Eq. 2, or its share of what is assigned to the parents."""
        if terms is None:
            each_type = total.new_ones(self.types)  # at first the same is assigned to all: [B, P, 1]
            mass = (total + self.constants.mass_floor) * each_type
            return mass.log() - mass.sum(dim=(1, 2), keepdim=True).log()
        costs = self.costs(total, variance)
        return F.logsigmoid(terms.inverse_temperatures[iteration] * (terms.budget - costs))

    def costs(self, mass: Tensor, variance: Tensor) -> Tensor:
        """Cost of each parent's children in nats (Procedure 1, line 5), [B, P, J]; as in `Iteration`."""
        per_child = variance.shape[3] * self.beta_u + 0.5 * variance.log().sum(dim=3)  # over all elements
        return self.constants.cost_scale * per_child * mass


def _gather(x: Tensor, places: Tensor) -> Tensor:
    """What lies at places [M, Q] of x [B, S, ...], [B, M, Q, ...]: x[:, places], but a single ONNX node."""
    return x.index_select(1, places.flatten()).unflatten(1, places.shape)


def _assign(
    squares: Tensor, variance: Tensor, log_activations: Tensor, fields: ReceptiveFields, exponent: float
) -> Tensor:
    """E-step: the share of each child that each parent gets, [B, P, J, N]; a child's sum to 1.

    It is in proportion to the parent's activation times the child's density to the power of the exponent.
    """
    precision = (0.5 / variance).unsqueeze(4)  # [B, P, J, H, 1]
    log_norm = 0.5 * (variance.log().sum(dim=3, keepdim=True) + variance.shape[3] * math.log(2 * math.pi))
    log_density = -(squares @ precision).squeeze(4) - log_norm  # [B, P, J, N]
    if exponent != 1:
        log_density = exponent * log_density
    joint = log_activations.unsqueeze(3) + log_density
    totals = fields.over_parents(joint.logsumexp(dim=2))  # [B, P, N]
    name_in_graph(precision=precision, log_norm=log_norm, log_density=log_density, joint=joint, totals=totals)
    return (joint - totals.unsqueeze(2)).exp()
