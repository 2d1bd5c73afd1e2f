"""What EM routing by compiled kernels is given, on a CPU and on CUDA alike."""

# B batch, C all children, N children of a parent, P parent positions, J parent types, Q parent positions that
# a child reaches at most

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from training.models.em import ActivationTerms


class RoutingInputs(NamedTuple):
    """Votes by their factors, 4x4 poses and 4x4 matrices, and whom they are for; all float32.

    Attributes:
        poses: of the children, [B, C, 16].
        activations: of the same, [B, C].
        matrices: of each pair of child and parent type, [J, N, 16].
        offsets: added to every parent's votes, without a gradient, [N, 16].
        child: whom each parent position sees, int64 [P, N].
        places: where each child is seen, as p * N + n, int64 [C, Q].
        counts: in how many of these places, int64 [C].
        shares: the first assignments, [P, N], the same for all parent types.
        beta_u: cost of each element of a child that a parent explains, beside its distance, [J].
        terms: of the parents' activations, in each of T iterations.
        floors: of mass and variance.
        density_exponent: power of the Gaussian's density in the E-step.
    """

    poses: Tensor
    activations: Tensor
    matrices: Tensor
    offsets: Tensor
    child: Tensor
    places: Tensor
    counts: Tensor
    shares: Tensor
    beta_u: Tensor
    terms: ActivationTerms
    floors: tuple[float, float]
    density_exponent: float


FusedRouting = Callable[[RoutingInputs], tuple[Tensor, Tensor]]
"""Gives means [B, P, J, 16] and log activations [B, P, J] of the parents, and their gradients by poses,
activations, matrices, beta_u and budget."""
