"""Where a run comes from: commit, command, hardware."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from training.config import MatrixCapsNetConfig, RunConfig
from training.models.cpu.bfloat16_convolution import has_bfloat16_instructions


def source_commit() -> str:
    """Commit of this code, with `-dirty` when files differ from it; `unknown` outside a git checkout.

    The environment variable CAPSNET_COMMIT, set where an image is built, stands in for git.
    """
    if commit := os.environ.get("CAPSNET_COMMIT"):
        return commit
    try:
        _git("ls-files", "--error-unmatch", __file__)  # the checkout may be of a project that installed this
        return _git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    """What git prints about the checkout that this file is in."""
    command, folder = ["git", *arguments], Path(__file__).parent
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def machines() -> int:
    """How many machines torchrun has started processes on; 1 without torchrun."""
    return int(os.environ["GROUP_WORLD_SIZE"]) if torch.distributed.is_torchelastic_launched() else 1


def program() -> list[str]:
    """What starts this program; of several processes what starts them on a machine."""
    name = Path(sys.argv[0]).name
    if not torch.distributed.is_torchelastic_launched():
        return ["capsnet-train" if name in {"cli.py", "__main__.py"} else name]  # python -m training
    nodes = ["--nnodes", str(machines())] if machines() > 1 else []
    return ["torchrun", *nodes, "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], "-m", "training.cli"]


def command_line() -> str:
    """The command as typed, its program by name."""
    return shlex.join([*program(), *sys.argv[1:]])


def hardware(device: torch.device, config: RunConfig) -> str:
    """The GPU, or the processor and the number of threads, and what is trained in less than float32.

    On a CPU that is no part of matrix capsules, whose first convolution has few channels, the others being of
    1x1 pixels, and nothing where a decoder alone is trained.
    """
    name = f"{_processor()}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    trains_convolutions = config.optimizer.trained_part == "network" and not isinstance(
        config.model, MatrixCapsNetConfig
    )
    rounded = device.type == "cuda" or (trains_convolutions and has_bfloat16_instructions())
    return f"{name}, torch {torch.__version__}{', convolutions in bfloat16' if rounded else ''}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
