"""The capsule layers of *Matrix Capsules with EM Routing* (Hinton, Sabour, Frosst 2018), Sec. 4."""

# B batch, C channels, H and W height and width, S child positions, I child types, K child positions in a
# receptive field, N = K * I children of a parent, P parent positions, J parent types, 16 pose elements

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from training.models.em import ActivationTerms, Capsules, EMRouting, Iteration, ReceptiveFields
from training.models.graph_names import name_in_graph

POSE = 16  # elements: a 4x4 matrix, row by row, or in the ablation a vector
MATRIX_SIDE = 4
COORDINATES = (3, 7)  # the elements that a capsule's place is added to: the upper two of the last column
OFFICIAL_COORDINATES = (0, 1)  # the same in the official code
# Matrices start as the identity plus noise: at first a child's votes are about its own pose, whoever the
# parent. With random ones its votes for different parents have nothing in common; then, at the latest in the
# third iteration, the least change of a picture leads to other assignments, and little is learned.
MATRIX_NOISE = 0.03
AT_ONCE = 32  # examples that are routed together where no gradients are wanted: their votes are large
# Numbers in the votes that are written down together, 128 MiB: for a gradient, routing keeps some ten arrays
# as large.
VOTES_AT_ONCE = 2**25
ACTIVATION_BIAS = -1.0  # of the primary capsules at first: few of them are there (official code)


class PrimaryMatrixCapsules(nn.Module):
    """At each position of the feature maps, capsules of several types: poses linear, activations sigmoid."""

    def __init__(self, in_channels: int, types: int):
        super().__init__()
        self.poses = nn.Conv2d(in_channels, types * POSE, 1)
        self.activations = nn.Conv2d(in_channels, types, 1)
        nn.init.constant_(self.activations.bias, ACTIVATION_BIAS)  # type: ignore[arg-type]  # there is one

    def forward(self, x: Tensor) -> Capsules:
        """Feature maps [B, C, H, W] to capsules at S = H * W positions, row by row; always in float32.

        In bfloat16 a pose would be off by up to 0.4 %, where votes that agree differ by less.
        """
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.float())
        poses = self.poses(x).flatten(2).transpose(1, 2).unflatten(2, (-1, POSE))
        activations = self.activations(x).sigmoid().flatten(2).transpose(1, 2)
        name_in_graph(poses=poses, activations=activations)
        return Capsules(poses, activations)


class MatrixCapsules(nn.Module):
    """Capsules that children vote for, V_ij = M_i W_ij, and that EM routing fits to the votes."""

    fields: ReceptiveFields
    routing: EMRouting
    offsets: Tensor
    shares: Tensor

    def __init__(
        self,
        fields: ReceptiveFields,
        lower_types: int,
        routing: EMRouting,
        vector_poses: bool = False,
        shared: bool = False,
        coordinates: Tensor | None = None,
        elements: tuple[int, int] = COORDINATES,
        matrix_noise: float = MATRIX_NOISE,
    ):
        """Build the layer.

        Args:
            fields: which child positions each parent position sees.
            lower_types: I.
            routing: of J parent types.
            vector_poses: poses are vectors, and the matrices 16x16 (the ablation of Sec. 5).
            shared: children of one type have the same matrices at all positions.
            coordinates: row and column of each child position, scaled, added to its votes, [S, 2];
                None adds nothing.
            elements: of a pose, to which they are added.
            matrix_noise: standard deviation of the noise that is added to the identity at first.
        """
        super().__init__()
        side = POSE if vector_poses else MATRIX_SIDE
        places = 1 if shared else fields.inside.shape[1]
        noise = torch.randn(places, lower_types, routing.types, side, side)
        self.weight = nn.Parameter(torch.eye(side) + matrix_noise * noise)
        self.fields, self.routing = fields, routing
        offsets = torch.zeros(fields.inside.shape[1], lower_types, POSE)
        if coordinates is not None:
            offsets[:, :, elements] = coordinates[:, None]
        self.register_buffer("offsets", offsets.flatten(0, 1), persistent=False)  # [N, 16]
        # [P, 1, N]; held, so that they are a constant of an exported graph, which explains routing by them.
        self.register_buffer("shares", routing.initial_assignments(fields, lower_types), persistent=False)

    def forward(self, children: Capsules) -> Capsules:
        """Children at S positions to parents at P positions; float32 also under autocast."""
        if torch.is_autocast_enabled(children.poses.device.type):  # a variance near 0 breaks half precision
            with torch.autocast(children.poses.device.type, enabled=False):
                return self.forward(children)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():  # true while exporting, too
            return self._routed(children)
        groups = zip(*(part.split(AT_ONCE) for part in children), strict=True)
        parts = [self._routed(Capsules(*group)) for group in groups]
        return Capsules(*(torch.cat(all_of) for all_of in zip(*parts, strict=True)))

    def _routed(self, children: Capsules) -> Capsules:
        """`forward` of all examples together; of many votes only some are there at a time."""
        positions, places = self.fields.inside.shape
        votes = positions * places * children.poses.shape[2] * self.routing.types * POSE  # of an example
        at_once = max(1, VOTES_AT_ONCE // votes)
        if torch.compiler.is_compiling() or len(children.poses) <= at_once:
            return self._routed_at_once(children)
        route: Callable[[Capsules], Capsules] = self._routed_at_once
        if torch.is_grad_enabled():
            # Votes are not kept for the way back, but made again. By then, a calibration may have changed
            # what the activations were made of.
            same = partial(self._routed_at_once, terms=self.routing.activation_terms())
            route = partial(checkpoint, same, use_reentrant=False)
        groups = zip(*(part.split(at_once) for part in children), strict=True)
        parts = [route(Capsules(*group)) for group in groups]
        return Capsules(*(torch.cat(all_of) for all_of in zip(*parts, strict=True)))

    def _routed_at_once(self, children: Capsules, terms: ActivationTerms | None = None) -> Capsules:
        """`forward` with all votes written down."""
        votes, activations = self._seen(children)
        name_in_graph(votes=votes, activations=activations)
        parents: Capsules = self.routing(votes, activations, self.fields, self.shares, terms)
        return parents

    def iterations(self, children: Capsules) -> Iterator[Iteration]:
        """Route as `forward` does, by array operations, and show each iteration."""
        return self.routing.steps(*self._seen(children), self.fields, self.shares)

    def _seen(self, children: Capsules) -> tuple[Tensor, Tensor]:
        """Votes [B, P, J, N, 16] and activations [B, P, N] of each parent's children."""
        return self.votes(children.poses), self.fields.seen(children.activations)

    def votes(self, poses: Tensor) -> Tensor:
        """Children's poses [B, S, I, 16] to votes [B, P, J, N, 16]."""
        side = self.weight.shape[3]
        seen = self.fields.by_slot(poses).unflatten(4, (-1, side))  # [B, P, K, I, rows, side]
        votes = torch.einsum("bpkirm,kijmc->bpjkirc", seen, self.matrices())
        return votes.flatten(5).flatten(3, 4) + self.offsets

    def begin_as_officially(self, matrix_std: float, sigma_bias: float, activation_bias: float) -> None:
        """Set the parameters to the official code's first values, given in its own terms.

        Args:
            matrix_std: deviation of the truncated normal distribution that the matrices are drawn from.
            sigma_bias: beta_u in units of a unit Gaussian's entropy; it stands beside log sigma^2.
            activation_bias: the same as beta_a, but counted as a cost.
        """
        nn.init.trunc_normal_(self.weight, std=matrix_std, a=-2 * matrix_std, b=2 * matrix_std)
        nn.init.constant_(self.routing.beta_u, sigma_bias * (1 + math.log(2 * math.pi)) / 2)
        nn.init.constant_(self.routing.beta_a, -activation_bias)

    def matrices(self) -> Tensor:
        """Those of each child in a receptive field, [K, I, J, side, side]."""
        places = self.fields.inside.shape[1]
        return self.weight if len(self.weight) == places else self.weight.expand(places, -1, -1, -1, -1)
