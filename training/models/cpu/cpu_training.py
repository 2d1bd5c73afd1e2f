"""Whether a layer may use the algorithms that are written for training on a CPU."""

import torch
from torch import Tensor


def trained_on_cpu(x: Tensor) -> bool:
    """True for float32 on a CPU with gradients wanted, while nothing is traced and no autocast is on.

    Elsewhere the plain operators are better: CUDA has its own algorithms, an exported graph shows the network
    as the paper does, and transformed weights do not pay off for a few images.
    """
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()  # true while exporting, too
    )
