"""What CUDA devices compute in, and whether one runs the kernels that are written in Triton."""

import logging
import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch

OLDEST = (7, 0)  # compute capability that Triton compiles for: Volta of 2017
logger = logging.getLogger(__name__)


def use_full_float32() -> None:
    """From now on CUDA rounds nothing to TF32: errors are those of the CPU, and of what is served."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@cache
def runs_triton(device: torch.device) -> bool:
    """True on a CUDA device where Triton is installed, as it is with torch for CUDA on Linux.

    Triton also needs a C compiler. Without one routing stays array operations, and a warning says so.
    """
    if (
        device.type != "cuda"
        or find_spec("triton") is None
        or torch.cuda.get_device_capability(device) < OLDEST
    ):
        return False
    if not has_c_compiler():
        logger.warning("no C compiler, which Triton needs: routing is slower; install gcc or clang")
        return False
    return True


def has_c_compiler() -> bool:
    """Whether there is one where Triton looks: CC, gcc or clang."""
    return bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))
