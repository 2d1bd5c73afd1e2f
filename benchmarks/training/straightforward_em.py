"""Matrix capsules as a direct loop over positions: what benchmarks/training/step.py compares with.

Procedure 1 of *Matrix Capsules with EM Routing* as it is written, parent position by parent position: the
votes by a broadcast product of each child's pose with the matrices of its types, M-step and E-step by
multiplying and summing with axes of length 1, and then, child position by child position, the sum over all
parents that the child reaches, but for the E-step after the last M-step, which nothing would come of. Nothing
is done to slow it down, and nothing else to speed it up.
"""

# B batch, S child positions, I child types, P parent positions, K child positions in a receptive field,
# N = K * I children of a parent, J parent types, 16 pose elements

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models.em import Capsules, EMRouting
from training.models.matrix_capsnet import MatrixCapsNet
from training.models.matrix_capsules import MatrixCapsules


class LoopedCapsules(nn.Module):
    """A layer that computes what one of ours does, with its parameters."""

    def __init__(self, ours: MatrixCapsules):
        super().__init__()
        self.ours = ours
        self.fields: list[list[int]] = ours.fields.inside.tolist()
        self.places: list[list[tuple[int, int]]] = [[] for _ in range(len(ours.fields.counts))]
        for p, children in enumerate(self.fields):
            for k, child in enumerate(children):
                self.places[child].append((p, k))

    @property
    def routing(self) -> EMRouting:
        """Whose lambda and budgets may follow each batch."""
        return self.ours.routing

    def forward(self, children: Capsules) -> Capsules:
        """Children at S positions to parents at P positions."""
        routing, constants = self.ours.routing, self.ours.routing.constants
        votes = [self._votes(children.poses[:, seen]) for seen in self.fields]  # P of [B, N, J, 16]
        activations = [children.activations[:, seen].flatten(1)[..., None] for seen in self.fields]
        types = len(routing.beta_u)
        shares = [
            torch.tensor([1 / (types * len(self.places[child])) for child in seen])
            .repeat_interleave(children.poses.shape[2])[None, :, None]
            .to(children.poses)
            for seen in self.fields
        ]
        for iteration in range(routing.iterations):
            parents, joint = [], []
            for share, activation, vote in zip(shares, activations, votes, strict=True):
                r = share * activation  # [B, N, J]
                total = r.sum(dim=1)  # [B, J]
                weight = (r / (total[:, None] + constants.mass_floor))[..., None]
                mean = (weight * vote).sum(dim=1, keepdim=True)  # [B, 1, J, 16]
                square = (vote - mean) ** 2
                variance = (weight * square).sum(dim=1, keepdim=True) + constants.variance_floor
                cost = ((routing.beta_u[:, None] + 0.5 * variance[:, 0].log()) * total[..., None]).sum(dim=2)
                inverse_temperature = routing.inverse_temperature_in(iteration)
                log_a = F.logsigmoid(inverse_temperature * (routing.budget() - cost))  # [B, J]
                parents.append((mean[:, 0], log_a.exp()))
                if iteration + 1 < routing.iterations:
                    log_p = -(square / (2 * variance) + 0.5 * (2 * math.pi * variance).log()).sum(dim=3)
                    joint.append(log_a[:, None] + constants.density_exponent * log_p)  # [B, N, J]
            if joint:
                shares = self._shares(joint, children.poses.shape[2])
        means, found = zip(*parents, strict=True)
        return Capsules(torch.stack(means, dim=1), torch.stack(found, dim=1))

    def _votes(self, poses: Tensor) -> Tensor:
        """Of the children that one parent position sees, [B, K, I, 16] to [B, N, J, 16]."""
        matrices = self.ours.weight.expand(poses.shape[1], -1, -1, -1, -1)  # [K, I, J, 4, 4]
        votes = torch.matmul(poses.unflatten(3, (4, 4)).unsqueeze(3), matrices)
        return votes.flatten(4).flatten(1, 2) + self.ours.offsets[:, None]

    def _shares(self, joint: list[Tensor], types: int) -> list[Tensor]:
        """What each child gives to each of the parents that it reaches; P of [B, N, J]."""
        by_place = [logs.unflatten(1, (-1, types)) for logs in joint]  # P of [B, K, I, J]
        shares = [[torch.empty(0)] * len(seen) for seen in self.fields]
        for reached in filter(None, self.places):  # at an edge there may be children that no parent sees
            logs = torch.stack([by_place[p][:, k] for p, k in reached], dim=2)  # [B, I, parents, J]
            of_child = logs.flatten(2).softmax(dim=2).unflatten(2, (len(reached), -1))
            for index, (p, k) in enumerate(reached):
                shares[p][k] = of_child[:, :, index]
        return [torch.cat(parts, dim=1) for parts in shares]


def looped(model: MatrixCapsNet) -> MatrixCapsNet:
    """The same network with its layers of capsules as loops; it keeps the parameters."""
    model.conv_caps = nn.ModuleList(LoopedCapsules(layer) for layer in _layers(model.conv_caps))
    model.class_caps = LoopedCapsules(model.class_caps)  # type: ignore[assignment]  # it is called alike
    return model


def by_array_operations(model: MatrixCapsNet) -> MatrixCapsNet:
    """The same network as it is exported."""
    for layer in [*_layers(model.conv_caps), model.class_caps]:
        layer.__class__ = MatrixCapsules
    return model


def _layers(layers: nn.ModuleList) -> list[MatrixCapsules]:
    return [layer for layer in layers if isinstance(layer, MatrixCapsules)]
