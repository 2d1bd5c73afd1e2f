"""Options that benchmarks share; each is an argparse type."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from export.contract.manifest import BundleError, newest_version

if TYPE_CHECKING:
    import torch


def bundle(text: str) -> Path:
    """The folder of a bundle: itself, or the newest version in a model's folder."""
    try:
        folder = newest_version(Path(text).resolve())
    except BundleError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    missing = [
        name for name in ("manifest.json", "encoder.onnx", "samples.npz") if not (folder / name).is_file()
    ]
    if missing:
        raise argparse.ArgumentTypeError(f"{text} is no bundle: it has no {missing[0]}")
    return folder


def positive(text: str) -> int:
    """A whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text}")
    return int(text)


def device(text: str) -> "torch.device":
    """A CUDA device or the CPU."""
    import torch

    try:
        found = torch.device(text)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cuda", "cpu"):
        raise argparse.ArgumentTypeError(f"expected cuda or cpu, got {text}")
    return found


def several(text: str) -> list[int]:
    """Whole numbers, at least 1 each, separated by commas."""
    return [positive(part) for part in text.split(",")]


def seconds(text: str) -> float:
    """A time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return value
