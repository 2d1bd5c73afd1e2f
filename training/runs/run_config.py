"""What a run starts with: the configuration of a new run, or of the run to resume."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.config import RunConfig, from_dict, load_preset, to_dict
from training.data.own_pictures import configure, find_again
from training.models.build import build
from training.runs import checkpoint, from_bundle
from training.runs.result import times_measured
from training.runs.weights import refuse_other_weights, with_decoder_of

PICTURES = "the digest of the pictures' names"


def new_config(out: Path, **options: Any) -> RunConfig:
    """The configuration of a new run.

    Args:
        out: the run's folder to be.
        options: those of `config_from_options`.

    Raises:
        FileNotFoundError: see `config_from_options`.
        ValueError: `out` holds a run, or lies among the pictures; see `config_from_options`.
    """
    checkpoint.refuse_a_run(out)
    _refuse_among_pictures(out, options.get("images"))
    return config_from_options(**options)


def new_or_matching_config(out: Path, start_from: Path | None = None, **options: Any) -> RunConfig:
    """The configuration of a new run, or of the same one, if `out` holds it: torchrun repeats its command.

    Args:
        out: the run's folder.
        start_from: only of a new run is it read: by the time of a restart it may have changed, or be gone.
        options: the others of `config_from_options`.

    Raises:
        FileNotFoundError: see `config_from_options`.
        ValueError: `out` holds a run that differs from what is asked for, or whose config.json is not that of
            its checkpoints, or lies among the pictures; see `config_from_options`.
    """
    _refuse_among_pictures(out, options.get("images"))
    if checkpoint.newest_checkpoint(out) is None:
        checkpoint.refuse_a_run(out)  # here: files of something else
        return config_from_options(start_from=start_from, **options)
    recorded = _recorded(out)
    config = replace(_of_random_weights(**options), started_from=recorded.started_from)
    differing = checkpoint.changes_of(recorded, config)
    if (start_from is None) != (recorded.started_from is None):
        differing = "only one of the two starts from other weights, see --start-from"
    if differing:
        raise ValueError(
            f"{out} already holds another run: {differing}; "
            "continue that one with --resume, or choose another --out"
        )
    return config


def _refuse_among_pictures(out: Path, images: Path | None) -> None:
    """Raise if a run would be written where it is taken for a class of pictures."""
    # Not Path.resolve, which ends with a RuntimeError at a link to itself.
    if images is not None and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(images)):
        raise ValueError(f"{out} lies among the pictures in {images}; choose an --out elsewhere")


def _recorded(out: Path) -> RunConfig:
    """The configuration of a run that has a checkpoint; raises if its newest one is of another run.

    With another seed, for example, it would be validated on images that it was trained on.
    """
    config, newest = checkpoint.read_config(out), checkpoint.newest_checkpoint(out)
    if newest is None:
        raise ValueError(f"{out} has no checkpoint to resume; start it without --resume")
    if differing := checkpoint.changes_of_run(checkpoint.trained_config(newest), config):
        raise ValueError(
            f"{out / checkpoint.CONFIG} has changed since {newest.name}: {differing}; undo this, or start "
            "another run; only the loss and the optimizer of a run may be changed, except batch_size and "
            "trained_part"
        )
    return config


def config_from_options(
    preset: str | None = None,
    images: Path | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    ema_decay: float | None = None,
    start_from: Path | None = None,
) -> RunConfig:
    """The configuration that options ask for; what is None is the preset's.

    Args:
        preset: its name; None: `images` for the user's own pictures, else `mnist`.
        images: folder of the user's own pictures.
        seed: of weights, order and shifts.
        epochs: passes over the training images.
        ema_decay: of the moving average of the weights, per step.
        start_from: another run, with whose newest weights this one begins, or a bundle; for a decoder alone,
            the run's weights with the lowest validation error.

    Raises:
        FileNotFoundError: the pictures, or a checkpoint to start from, are not there.
        ValueError: there is no such preset, the pictures cannot be learned from, or the other run learned
            from what would be held out here; also a bundle that is not whole, and a decoder alone that is to
            be trained on the poses of no network.
    """
    config = _of_random_weights(preset, images, seed, epochs, ema_decay)
    if config.optimizer.trained_part == "decoder" and not start_from:
        raise ValueError(
            f"{config.preset} trains a decoder on the poses of a network; name its run with --start-from"
        )
    if not start_from:
        return config
    origin = _origin(start_from, best=config.optimizer.trained_part == "decoder")
    first = from_dict(origin["config"])
    _refuse_other_held_out(start_from, first, config)
    return replace(config, started_from=origin | {"steps_before": _steps(origin)})


def _steps(origin: dict[str, Any]) -> int:
    """Of a stage and of all before it."""
    earlier = origin["config"].get("started_from")
    return int(origin["step"]) + (_steps(earlier) if earlier else 0)


def _of_random_weights(
    preset: str | None = None,
    images: Path | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    ema_decay: float | None = None,
) -> RunConfig:
    """As `config_from_options`, whatever the run starts from."""
    usual = "images" if images else "mnist"
    config = load_preset(usual if preset is None else preset)
    if images:
        config = configure(config, images)
    if seed is not None:
        config = replace(config, seed=seed)
    if epochs is not None:
        config = replace(config, optimizer=replace(config.optimizer, epochs=epochs))
    if ema_decay is not None:
        config = replace(config, optimizer=replace(config.optimizer, ema_decay=ema_decay))
    return config


def resumed_config(out: Path, images: Path | None = None) -> RunConfig:
    """The configuration of a run to resume.

    Args:
        out: the run's folder.
        images: where the user's own pictures are now; None: where they were.

    Raises:
        FileNotFoundError: there is no run, or its pictures are gone.
        ValueError: there is nothing to go on from, config.json has another network, other data or another
            seed than the newest checkpoint, or `images` are named for a run on a data set.
    """
    return find_again(_recorded(out), images, out)


def initial_weights(config: RunConfig, start_from: Path) -> dict[str, Tensor]:
    """The weights of what `new_config` found.

    Raises:
        ValueError: the file is damaged, a bundle's graphs do not hold all weights, or these are those of
            another architecture.
    """
    assert config.started_from is not None
    if bundle := config.started_from.get("bundle"):
        weights = from_bundle.weights(start_from, str(bundle))
    else:
        weights = checkpoint.read_weights(start_from / "checkpoints" / str(config.started_from["checkpoint"]))
    with torch.device("meta"):
        network = build(config.model)
    refuse_other_weights(network, with_decoder_of(network, weights), str(start_from))
    return weights


def _origin(run: Path, best: bool) -> dict[str, Any]:
    """How the weights of another run or of a bundle came about: its configuration and how far it had come."""
    if checkpoint.is_run(run):
        return _origin_of_run(run, best)
    if not from_bundle.is_bundle(run):
        raise FileNotFoundError(f"{run} is neither a run of capsnet-train nor a bundle to start from")
    return from_bundle.origin(run)


def _refuse_other_held_out(run: Path, first: RunConfig, config: RunConfig) -> None:
    """Raise if a run to start from, configured as `first`, learned from what would be held out here."""
    there, here = held_out_by(first), held_out_by(config)
    if not config.data.validation_images:  # whatever was held out there may be trained on here
        del here["the seed"], here["validation_images"], here["held_out"]
    differing = [
        f"{what} is {there[what]} there, {here[what]} here" for what in here if there[what] != here[what]
    ]
    if differing:
        held_out = config.data.validation_images
        what = "does not hold out the images that would be held out here" if held_out else "saw other images"
        remedy = ""
        if there[PICTURES] and here[PICTURES] and there[PICTURES] != here[PICTURES]:
            remedy = "; name the folder that it learned from, or train anew without --start-from"
        raise ValueError(f"{run} {what}: {'; '.join(differing)}{remedy}")


def _origin_of_run(run: Path, best: bool) -> dict[str, Any]:
    """At its lowest validation error, or at its end: training goes on from there."""
    newest = checkpoint.newest_checkpoint(run)
    if newest is None:
        raise FileNotFoundError(f"{run} has no checkpoint to start from")
    if best:
        newest = checkpoint.best_checkpoint(run)
    first = checkpoint.config_at(run, newest)
    return {
        "checkpoint": newest.name,
        "config": to_dict(first),
        **asdict(checkpoint.read_progress(newest)),
        "times_measured": times_measured(run, first),
    }


def held_out_by(config: RunConfig) -> dict[str, Any]:
    """What decides which images are held out."""
    return {
        "the data set": config.data.name,
        PICTURES: config.data.folder_digest,
        "the seed": config.seed,
        "validation_images": config.data.validation_images,
        "held_out": config.data.held_out,
        "familiar": config.data.familiar,
    }
