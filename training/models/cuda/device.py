"""Whether a device runs the kernels that are written in Triton."""

from functools import cache
from importlib.util import find_spec

import torch

OLDEST = (7, 0)  # compute capability that Triton compiles for: Volta of 2017


@cache
def runs_triton(device: torch.device) -> bool:
    """True on a CUDA device where Triton is installed, as it is with torch for CUDA on Linux."""
    return (
        device.type == "cuda"
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= OLDEST
    )
