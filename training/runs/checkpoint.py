"""Checkpoints: weights as safetensors plus the JSON that rebuilds the model and the run.

A run is a folder:

    config.json                      the run's configuration
    log.jsonl                        one JSON object per logged step and validation
    checkpoints/step-00000430/       model.safetensors, optimizer.safetensors, progress.json; config.json, of
                                     that session; raw.safetensors, where model.safetensors is an average of
                                     the weights
    result.json                      test metrics, once `capsnet-train evaluate` has measured them

A checkpoint is written aside and renamed, so a folder of that name is always whole.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from export.contract.atomic_file import write_atomically
from training.config import RunConfig, from_dict, to_dict
from training.models.build import Network, build
from training.runs.weights import (
    REMEDY,
    Shapes,
    difference,
    load_finite,
    load_tensors,
    not_finite,
    refuse_other_weights,
    shapes,
)

CONFIG = "config.json"
LOG = "log.jsonl"
STEP = re.compile(r"step-\d{8,}")  # the name of a checkpoint
MODEL = "model.safetensors"
RAW = "raw.safetensors"
OPTIMIZER = "optimizer.safetensors"
KEPT = 2  # newest checkpoints, besides the one with the lowest validation error


class NotFiniteError(ValueError):
    """A weight is infinite or NaN."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come, and where it was trained.

    Attributes:
        step: optimizer steps done.
        epochs: complete passes over the training images, a fraction within one.
        best_step: of the best checkpoint so far, see `is_best`; 0 before the first validation.
        best_error_percent: validation error at that step; None before the first validation.
        best_loss: of classification at that validation; None before the first, and in older checkpoints.
        lowest_loss: of classification at a validation so far; None before the first.
        improved_epochs: epochs done when validation last improved, see `patience_epochs`.
        train_seconds: time spent in training, over all sessions of the run.
        hardware: what the run was started on.
        source_commit: commit of the code it was started with, `-dirty` if the working tree differed from it.
        command: the command line that started it.
        resumed: one line for each later session: from which step, command, commit, hardware, and what was
            configured otherwise than in the session before.
    """

    step: int = 0
    epochs: float = 0.0
    best_step: int = 0
    best_error_percent: float | None = None
    best_loss: float | None = None
    lowest_loss: float | None = None
    improved_epochs: float = 0.0
    train_seconds: float = 0.0
    hardware: str = ""
    source_commit: str = ""
    command: str = ""
    resumed: tuple[str, ...] = ()

    def is_best(self, error_percent: float, loss: float) -> bool:
        """Whether a validation now is the best so far: by its error, then its loss; of equals the last."""
        best = self.best_error_percent
        if best is None or error_percent < best:
            return True
        return error_percent == best and (self.best_loss is None or loss <= self.best_loss)

    def resumed_by(self, session: "Progress", configured: str = "") -> "Progress":
        """This progress, with a note of the session that continues from here.

        Args:
            session: its hardware, command and commit.
            configured: what is configured otherwise in it, see `configured_anew`.
        """
        note = f"from step {self.step}: {session.command}, {session.source_commit}, {session.hardware}"
        if configured:
            note += f", configured anew: {configured}"
        return replace(self, resumed=(*self.resumed, note))


_PROGRESS = TypeAdapter(Progress)


def write_config(run: Path, config: RunConfig) -> None:
    """Write the configuration of a run, or of the session that wrote a checkpoint."""
    run.mkdir(parents=True, exist_ok=True)
    write_atomically(run / CONFIG, json.dumps(to_dict(config), indent=2) + "\n")


def is_run(folder: Path) -> bool:
    """Whether the folder is a run's; it may have no checkpoint yet."""
    return (folder / CONFIG).is_file()


def read_config(run: Path) -> RunConfig:
    """Configuration of a run.

    Raises:
        FileNotFoundError: the folder is not a run.
        ValueError: the configuration is not valid.
    """
    path = run / CONFIG
    if not is_run(run):
        raise FileNotFoundError(f"{run} is not a run of capsnet-train: it has no config.json")
    try:
        return from_dict(json.loads(path.read_text()))
    except ValueError as error:
        newest = newest_checkpoint(run)
        remedy = f"; {newest / CONFIG} is a copy" if newest and is_run(newest) else ""
        raise ValueError(f"{path}: {error}{remedy}") from None


def trained_config(checkpoint: Path) -> RunConfig:
    """The configuration that a checkpoint was trained with.

    Raises:
        ValueError: it is missing or not valid; says what helps.
    """
    path = checkpoint / CONFIG
    try:
        return from_dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {REMEDY}") from None


def config_at(run: Path, checkpoint: Path) -> RunConfig:
    """The configuration that a checkpoint was trained with: that of the run may have been changed since.

    The user's own pictures are where the run has them now.

    Raises:
        FileNotFoundError: the folder is not a run.
        ValueError: a configuration is not valid.
    """
    now, trained = read_config(run), trained_config(checkpoint)
    return replace(trained, data=replace(trained.data, folder=now.data.folder))


def configured_anew(checkpoint: Path, config: RunConfig) -> str:
    """How a session's configuration differs from its checkpoint's, in words; "" if it does not."""
    return changes_of(trained_config(checkpoint), config)


def changes_of(before: RunConfig, now: RunConfig) -> str:
    """How a configuration differs from an earlier one, in words; "" if it does not.

    The folder of the user's own pictures does not count, nor that of the stages before: their names identify
    them.
    """
    old, new = _flat(to_dict(before)), _flat(to_dict(now))
    return ", ".join(
        f"{name} {new.get(name)} ({old.get(name)} before)"
        for name in old | new
        if old.get(name) != new.get(name) and not name.endswith("data.folder")
    )


def changes_of_run(before: RunConfig, now: RunConfig) -> str:
    """As `changes_of`, of what identifies a run: network, data and seed, but not its schedule and loss.

    The batch size counts, as steps are counted in batches, and so does the part that is trained, as Adam's
    moments are of its weights alone.
    """
    optimizer = replace(
        before.optimizer, batch_size=now.optimizer.batch_size, trained_part=now.optimizer.trained_part
    )
    return changes_of(before, replace(now, optimizer=optimizer, loss=before.loss))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, its names joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def refuse_a_run(folder: Path) -> None:
    """Raise if a new run would write over another, or over files of something else.

    Raises:
        ValueError: the folder holds a checkpoint, or what has the name of a run's file and is none.
    """
    if newest_checkpoint(folder):
        raise ValueError(f"{folder} already holds a run; continue it with --resume, or choose another --out")
    foreign = f"{folder} holds a {{}} that is not of a run; choose another --out"
    if is_run(folder):
        try:
            read_config(folder)
        except ValueError:
            raise ValueError(foreign.format(CONFIG)) from None
    elif (folder / LOG).exists():
        raise ValueError(foreign.format(LOG))


def checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    found = (run / "checkpoints").glob("step-*")  # copies by hand have other names
    return sorted(path for path in found if STEP.fullmatch(path.name) and path.is_dir())


def checkpoint_at(run: Path, step: int) -> Path:
    """The folder of a step's checkpoint."""
    return run / "checkpoints" / f"step-{step:08d}"


def best_checkpoint(run: Path) -> Path:
    """The checkpoint with the lowest validation error; the newest if no error is known.

    Raises:
        FileNotFoundError: the run has no checkpoint yet.
        ValueError: how far it has come cannot be read.
    """
    newest = newest_checkpoint(run)
    if newest is None:
        raise FileNotFoundError(f"{run} has no checkpoint yet")
    best_step = read_progress(newest).best_step
    if best_step:
        return checkpoint_at(run, best_step)
    if newest_checkpoint(run) != newest:  # a training has just written a better one, and removed the best
        return best_checkpoint(run)
    return newest


def newest_checkpoint(run: Path) -> Path | None:
    """The last checkpoint, or None."""
    return next(reversed(checkpoints(run)), None)


def save(
    run: Path,
    model: Network,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    config: RunConfig,
    average: Network | None = None,
) -> Path:
    """Write a checkpoint atomically; remove all but the newest two and the best.

    Args:
        run: the run's folder.
        model: the network that is trained.
        optimizer: Adam of its weights.
        progress: of this moment.
        config: of this session, kept beside the weights: that of the run may be changed before the next one.
        average: has the average of its weights, where that is what the run is to give.

    Raises:
        NotFiniteError: a weight is not finite; nothing is written.
        OSError: it cannot be written, on a full disk for example; what there was of it is removed.
    """
    weights = _weights(model if average is None else average)
    if broken := not_finite(weights):
        raise NotFiniteError(f"weights are not finite at step {progress.step}: {broken[0]} and others")
    folder = checkpoint_at(run, progress.step)
    for left in folder.parent.glob(".step-*.partial"):  # by a process that was killed; one writes at a time
        shutil.rmtree(left, ignore_errors=True)
    aside = folder.with_name(f".{folder.name}.partial")
    aside.mkdir(parents=True)
    try:
        save_file(weights, aside / MODEL)
        if average is not None:
            save_file(_weights(model), aside / RAW)
        save_file(_optimizer_tensors(model, optimizer), aside / OPTIMIZER)
        write_atomically(aside / "progress.json", json.dumps(asdict(progress), indent=2) + "\n")
        write_config(aside, config)
        for tensors in aside.glob("*.safetensors"):  # which safetensors lets none but the owner read
            shutil.copymode(aside / "progress.json", tensors)
        sync(aside)
        aside.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise OSError(f"{folder} cannot be written: {error}") from None
    sync(folder.parent)
    remove_old(run)
    return folder


def remove_old(run: Path) -> None:
    """Remove all checkpoints but the newest ones, and the best as of each of them.

    If the newest is damaged and its user removes it, the one before it still finds its best.
    """
    newest = checkpoints(run)[-KEPT:]
    keep = {*newest, best_checkpoint(run)}
    for before in newest[:-1]:
        with suppress(OSError, ValueError):  # a damaged one, after which training goes on
            keep.add(checkpoint_at(run, read_progress(before).best_step))
    for old in checkpoints(run):
        if old not in keep:
            shutil.rmtree(old)


def read_progress(checkpoint: Path) -> Progress:
    """How far the run had come at a checkpoint; as if never validated, if the best one has been removed.

    Raises:
        ValueError: the file is missing, damaged, or another step's.
    """
    path = checkpoint / "progress.json"
    try:
        progress = _PROGRESS.validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; {REMEDY}") from None
    except ValidationError as error:
        raise ValueError(f"{path} cannot be read: {error.errors()[0]['msg']}; {REMEDY}") from None
    run = checkpoint.parent.parent
    if checkpoint_at(run, progress.step).name != checkpoint.name:
        raise ValueError(f"{path} is of step {progress.step}, not of {checkpoint.name}; {REMEDY}")
    if checkpoint_at(run, progress.best_step).exists():
        return progress
    return replace(progress, best_step=0, best_error_percent=None, best_loss=None)


def load_model(run: Path, checkpoint: Path, device: torch.device) -> Network:
    """The model of a run, with the weights of one of its checkpoints."""
    model = build(read_config(run).model)
    load_weights(model, checkpoint)
    return model.to(device)


def load_weights(model: Network, checkpoint: Path) -> None:
    """Give a model the weights of a checkpoint of its run.

    Raises:
        ValueError: they are those of another architecture, or the file is damaged.
    """
    _load_weights(model, checkpoint / MODEL)


def read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, of any run.

    Raises:
        ValueError: the file is damaged.
    """
    return load_finite(checkpoint / MODEL)


def load_trained_weights(model: Network, checkpoint: Path) -> None:
    """Load the weights that training continues with: the trained ones, not their average.

    Raises:
        ValueError: as `load_weights`, or there is only the average.
    """
    raw = checkpoint / RAW
    if raw.exists():
        return _load_weights(model, raw)
    if trained_config(checkpoint).optimizer.ema_decay:
        raise ValueError(f"{raw} is missing; {REMEDY}")
    return _load_weights(model, checkpoint / MODEL)


def load_optimizer(checkpoint: Path, model: Network, optimizer: torch.optim.Adam) -> None:
    """Restore Adam's moments, in their parameter's memory layout, and its step counts.

    Raises:
        ValueError: they are those of other weights, or the file is damaged.
    """
    path = checkpoint / OPTIMIZER
    stored = load_tensors(path)
    wanted: Shapes = {}
    for name, parameter in _trained(model):
        shape = tuple(parameter.shape)
        wanted |= {f"{name}.step": (), f"{name}.exp_avg": shape, f"{name}.exp_avg_sq": shape}
    if differs := difference(wanted, shapes(stored)):
        raise ValueError(f"{path} holds what Adam knows of other weights: {differs}; {REMEDY}")
    for name, parameter in _trained(model):
        step = stored[f"{name}.step"].to(parameter.device)  # where fused Adam expects it
        moments = {
            key: torch.empty_like(parameter, requires_grad=False).copy_(stored[f"{name}.{key}"])
            for key in ("exp_avg", "exp_avg_sq")
        }
        optimizer.state[parameter] = {"step": step, **moments}


def sync(folder: Path) -> None:
    """Flush a folder and its files to the disk."""
    for path in (*(child for child in folder.iterdir() if child.is_file()), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _weights(model: Network) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items()}


def _load_weights(model: Network, path: Path) -> None:
    weights = load_finite(path)
    refuse_other_weights(model, weights, str(path.parent))
    model.load_state_dict(weights)


def _optimizer_tensors(model: Network, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's state, keyed by the parameter's name."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in _trained(model):
        state: dict[str, Any] = optimizer.state[parameter]
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in state.items()}
    return tensors


def _trained(model: Network) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that Adam changes, by name."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
