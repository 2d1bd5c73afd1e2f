"""Class capsules that route without writing their votes down when they are trained on CUDA."""

# B batch, I lower capsules, J upper capsules, E lower pose, D upper pose

import torch
from torch import Tensor

from training.models.cpu.class_capsules import CpuClassCapsules, CpuRouting
from training.models.cuda.device import runs_triton

MAX_NUMBERS = 512  # of an image's upper capsules in a tile: 32 classes of 16; more do not fit into registers
MAX_MATRIX = 8192  # numbers of a lower capsule's matrices, of which shared memory holds three


class CudaClassCapsules(CpuClassCapsules):
    """Class capsules that route by kernels in Triton.

    Unless there are too many of them, or the routing is of a class of its own, which the kernels do not know.
    """

    def forward(self, u: Tensor) -> Tensor:
        """Lower capsules [B, I, E] to upper capsules v [B, J, D]."""
        numbers = _power_of_2(self.upper) * max(_power_of_2(self.upper_dim), 16)  # the kernels' tiles
        matrix = numbers * max(_power_of_2(u.shape[2]), 16)
        fits = numbers <= MAX_NUMBERS and matrix <= MAX_MATRIX
        if not fits or type(self.routing) is not CpuRouting or not _trained_with_triton(u):
            return super().forward(u)
        return self.fused(u)

    def fused(self, u: Tensor) -> Tensor:
        """The same by the kernels, whatever the device.

        Raises:
            ValueError: see `check_lower_capsules`.
        """
        self.check_lower_capsules(u)
        from training.models.cuda import fused_routing  # Triton takes a second to import

        routing = self.routing
        return fused_routing.route(
            *(u, self.weight, routing.priors, routing.bias),
            upper=self.upper,
            iterations=routing.iterations,
            none_of_the_above=routing.none_of_the_above,
        )


def _power_of_2(count: int) -> int:
    """The next one."""
    return 1 << (count - 1).bit_length()


def _trained_with_triton(u: Tensor) -> bool:
    """As `trained_on_cpu`, on CUDA where Triton is; under autocast the layer turns that off first."""
    return (
        not torch.compiler.is_compiling()  # first: it cannot trace `runs_triton`; true while exporting, too
        and runs_triton(u.device)
        and u.dtype == torch.float32
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(u.device.type)
    )
