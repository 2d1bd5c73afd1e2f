"""Checkpoints: weights as safetensors plus the JSON that rebuilds the model and the run.

A run is a folder:

    config.json                      the run's configuration
    log.jsonl                        one JSON object per logged step and validation
    checkpoints/step-00000430/       model.safetensors, optimiser.safetensors, progress.json
    result.json                      test metrics, once the run has finished

A checkpoint is written aside and renamed, so a folder of that name is always whole.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.config import RunConfig, from_dict, to_dict
from training.models.capsnet import CapsNet

KEPT = 2  # newest checkpoints, beside the one with the best validation error


@dataclass(frozen=True)
class Progress:
    """How far a run has come, and how it got there.

    Attributes:
        step: optimiser steps done.
        epochs: complete passes over the training images, a fraction within one.
        best_step: the step with the lowest validation error so far; 0 before the first validation.
        best_error_percent: validation error at that step; None before the first validation.
        train_seconds: time spent in training, over all sessions of the run.
        hardware: what the last session ran on.
        source_commit: the code's commit, with `-dirty` if the working tree differed from it.
        command: the command line of the last session.
    """

    step: int = 0
    epochs: float = 0.0
    best_step: int = 0
    best_error_percent: float | None = None
    train_seconds: float = 0.0
    hardware: str = ""
    source_commit: str = ""
    command: str = ""


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file so that a reader sees the old one or the new one, never a part."""
    aside = path.with_name(f".{path.name}.partial")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def write_config(run: Path, config: RunConfig) -> None:
    """Start a run folder."""
    run.mkdir(parents=True, exist_ok=True)
    write_atomically(run / "config.json", json.dumps(to_dict(config), indent=2) + "\n")


def read_config(run: Path) -> RunConfig:
    """Configuration of a run.

    Raises:
        FileNotFoundError: the folder is not a run.
        ValueError: the configuration is not valid.
    """
    path = run / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{run} is not a run of capsnet-train: it has no config.json")
    return from_dict(json.loads(path.read_text()))


def checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    return sorted((run / "checkpoints").glob("step-*"))


def checkpoint_at(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step:08d}"


def best_checkpoint(run: Path) -> Path:
    """The checkpoint with the lowest validation error; the newest when none has been validated.

    Raises:
        FileNotFoundError: the run has no checkpoint yet.
    """
    newest = newest_checkpoint(run)
    if newest is None:
        raise FileNotFoundError(f"{run} has no checkpoint yet")
    progress = read_progress(newest)
    return checkpoint_at(run, progress.best_step) if progress.best_step else newest


def newest_checkpoint(run: Path) -> Path | None:
    """The last checkpoint, or None."""
    return next(reversed(checkpoints(run)), None)


def save(run: Path, model: CapsNet, optimiser: torch.optim.Optimizer, progress: Progress) -> Path:
    """Write a checkpoint whole or not at all; older ones beyond the newest two and the best are removed.

    Raises:
        ValueError: a weight is not finite; nothing is written.
    """
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    broken = [name for name, tensor in weights.items() if not tensor.isfinite().all()]
    if broken:
        raise ValueError(f"weights are not finite at step {progress.step}: {', '.join(broken)}")
    folder = checkpoint_at(run, progress.step)
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(weights, aside / "model.safetensors")
    save_file(_optimiser_tensors(model, optimiser), aside / "optimiser.safetensors")
    write_atomically(aside / "progress.json", json.dumps(asdict(progress), indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)  # only when a validation rewrites the step it stands at
    aside.rename(folder)
    keep = {*checkpoints(run)[-KEPT:], checkpoint_at(run, progress.best_step)}
    for old in checkpoints(run):
        if old not in keep:
            shutil.rmtree(old)
    return folder


def read_progress(checkpoint: Path) -> Progress:
    """How far the run had come at a checkpoint."""
    return Progress(**json.loads((checkpoint / "progress.json").read_text()))


def load_model(run: Path, checkpoint: Path, device: torch.device) -> CapsNet:
    """Rebuild the model of a run with the weights of one of its checkpoints."""
    model = CapsNet(read_config(run).model)
    load_weights(model, checkpoint)
    return model.to(device)


def load_weights(model: CapsNet, checkpoint: Path) -> None:
    """Give a model the weights of a checkpoint, of its own run or of another.

    Raises:
        ValueError: they are those of another architecture.
    """
    try:
        model.load_state_dict(load_file(checkpoint / "model.safetensors"))
    except RuntimeError as error:
        raise ValueError(f"{checkpoint} holds the weights of another architecture: {error}") from None


def load_optimiser(checkpoint: Path, model: CapsNet, optimiser: torch.optim.Adam) -> None:
    """Put Adam's moments and step counts back."""
    stored = load_file(checkpoint / "optimiser.safetensors")
    for name, parameter in model.named_parameters():
        optimiser.state[parameter] = {
            key: stored[f"{name}.{key}"].to("cpu" if key == "step" else parameter.device)
            for key in ("step", "exp_avg", "exp_avg_sq")
        }


def _optimiser_tensors(model: CapsNet, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's state, keyed by the parameter's name."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state: dict[str, Any] = optimiser.state[parameter]
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in state.items()}
    return tensors
