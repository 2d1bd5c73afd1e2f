"""Class capsules that route without writing their votes down when they are trained on CUDA."""

# B batch, I lower capsules, J upper capsules, E lower pose, D upper pose

import torch
from torch import Tensor

from training.models.cpu.class_capsules import CpuClassCapsules
from training.models.cuda.device import runs_triton


class CudaClassCapsules(CpuClassCapsules):
    """Class capsules that route by kernels in Triton."""

    def forward(self, u: Tensor) -> Tensor:
        """Lower capsules [B, I, E] to upper capsules v [B, J, D]."""
        if not _trained_with_triton(u):
            return super().forward(u)
        return self.fused(u)

    def fused(self, u: Tensor) -> Tensor:
        """The same by the kernels, whatever the device."""
        from training.models.cuda import fused_routing  # Triton takes a second to import

        routing = self.routing
        return fused_routing.route(
            *(u, self.weight, routing.priors, routing.bias),
            upper=self.upper,
            iterations=routing.iterations,
            none_of_the_above=routing.none_of_the_above,
        )


def _trained_with_triton(u: Tensor) -> bool:
    """As `trained_on_cpu`, on CUDA where Triton is; under autocast the layer turns that off first."""
    return (
        runs_triton(u.device)
        and u.dtype == torch.float32
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(u.device.type)
        and not torch.compiler.is_compiling()  # true while exporting, too
    )
