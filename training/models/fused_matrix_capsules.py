"""Matrix capsules whose votes are never written down, with compiled EM routing for CPUs and for CUDA."""

# B batch, I child types, N children of a parent, P parent positions, J parent types, C all children,
# Q parent positions that a child position reaches; see `matrix_capsules.py`

import torch
from torch import Tensor

from training.models.cuda.device import runs_triton
from training.models.em import Capsules, EMRouting
from training.models.matrix_capsules import MATRIX_SIDE, MatrixCapsules
from training.models.routing_inputs import FusedRouting, RoutingInputs


class FusedMatrixCapsules(MatrixCapsules):
    """The layer as it is trained and evaluated; it is exported with the votes, by array operations."""

    def _routed(self, children: Capsules) -> Capsules:
        """`forward` of all examples together."""
        if not self.can_be_fused(children.poses):
            return super()._routed(children)
        return self.fused(children, _fused_routing(children.poses.device))

    def can_be_fused(self, poses: Tensor) -> bool:
        """In float32 on a CPU or by Triton, unless a graph is traced, and not in ablations and variants.

        Nor if the routing is of a class of its own: the kernels compute what `EMRouting` does.
        """
        return (
            not torch.compiler.is_compiling()  # first: it cannot trace `runs_triton`
            and (poses.device.type == "cpu" or runs_triton(poses.device))
            and poses.dtype == torch.float32
            and type(self.routing) is EMRouting
            and self.weight.shape[3] == MATRIX_SIDE
            and not self.routing.mixing_proportions
            and self.routing.constants.mean_inertia == 0
            and self.routing.constants.cost_scale == 1
        )

    def fused(self, children: Capsules, route: FusedRouting) -> Capsules:
        """`forward` with votes that are made where they are wanted, and never written down."""
        fields, routing, types = self.fields, self.routing, children.poses.shape[2]
        each = torch.arange(types, device=children.poses.device)
        terms = routing.activation_terms()
        assert terms is not None, "mixing proportions cannot be fused"
        means, log_activations = route(
            RoutingInputs(
                poses=children.poses.flatten(1, 2),  # [B, C, 16]
                activations=children.activations.flatten(1),  # [B, C]
                matrices=self.matrices().flatten(0, 1).flatten(2).transpose(0, 1),  # [J, N, 16]
                offsets=self.offsets,  # [N, 16]
                child=(fields.inside[:, :, None] * types + each).flatten(1),  # [P, N]
                places=(fields.reached[:, None] * types + each[:, None]).flatten(0, 1),  # [C, Q]
                counts=fields.counts.repeat_interleave(types),  # [C]
                shares=self.shares.squeeze(1),  # [P, N]
                beta_u=routing.beta_u,
                terms=terms,
                floors=(routing.constants.mass_floor, routing.constants.variance_floor),
                density_exponent=routing.constants.density_exponent,
            )
        )
        return Capsules(means, log_activations.exp())


def _fused_routing(device: torch.device) -> FusedRouting:
    """The fused form for a device; numba and Triton take a second to import."""
    if device.type == "cpu":
        from training.models.cpu import fused_em as on_cpu

        return on_cpu.route
    from training.models.cuda import fused_em as on_cuda

    return on_cuda.route
