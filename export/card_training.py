"""The training of a model card, as a table."""

from collections.abc import Iterator
from typing import Any

from export.contract.manifest import Manifest
from export.markdown import cell, code, plain
from training.config import (
    CapsNetConfig,
    CnnConfig,
    DataConfig,
    LossConfig,
    MatrixCapsNetConfig,
    OptimizerConfig,
    RunConfig,
    WarpConfig,
    from_dict,
)

MINUTE_S, HOUR_S = 60, 3600
MIN_HOURS = 0.1  # of less than this, two decimals say too little


def training_table(manifest: Manifest, config: RunConfig) -> list[str]:
    """The section on training: a table of the run's configuration and course."""
    training, optimizer = manifest.training, config.optimizer
    rows = {  # worded as in the cards of shipped bundles, which tests compare
        "preset": config.preset,
        "data": _data(config.data),
        "augmentation": _augmentation(config.data),
        "first weights": _first_weights(config),
        "loss": _loss(config),
        "optimizer": f"Adam, {_rate(optimizer)}",
        "cooldown": _cooldown(optimizer),
        "trained": f"{training['step']} steps, {_count(training['epochs'])} of {optimizer.epochs} epochs, "
        f"{_time(training['train_seconds'])}",
        "validation error": f"{_percent(training['best_error_percent'])}",
        "seed": config.seed,
        "hardware": training["hardware"],
        "command": code(training["command"]),
        "resumed": "; ".join(map(plain, training["resumed"])) or "never",
        "source commit": manifest.source_commit,
    }
    if optimizer.patience_epochs:
        rows["end"] = f"when {optimizer.patience_epochs} epochs have not improved validation"
    rows["test set"] = _times_measured(training)
    for stage, origin in enumerate(origins(config.started_from), start=1):
        rows[f"{stage} stages before" if stage > 1 else "1 stage before"] = _stage(origin)
    table = [f"| {name} | {cell(value)} |" for name, value in rows.items()]
    return ["## Training", "", "| | |", "| --- | --- |", *table, ""]


def _count(epochs: float) -> str:
    return f"{epochs:.3g}" if round(epochs) < 1000 else f"{epochs:.0f}"  # "g" rounds 999.7 to 1e+03


def _times_measured(training: dict[str, Any]) -> str:
    """How often the test error had been measured before this version was published."""
    times, versions = training["times_measured"], training["earlier_versions"]
    stages = " and the stages before it" if training["config"].get("started_from") else ""
    return (
        f"measured {times} time{'' if times == 1 else 's'} on this run{stages} before this version was made; "
        f"{versions} earlier version{'' if versions == 1 else 's'} of this name"
    )


def _data(data: DataConfig) -> str:
    """Which images were trained on."""
    parts = [
        data.spec.trained_on,
        f"of a third of the {data.familiar}s alone" if data.familiar else "",
        _held_out(data),
        f"at most {data.training_images} of the others trained on" if data.training_images else "",
        f"repeated to {data.epoch_images} an epoch" if data.epoch_images else "",
    ]
    return ", ".join(filter(None, parts))


def _held_out(data: DataConfig) -> str:
    if not data.validation_images:
        return "all of it: no checkpoint was selected, the last weights are the result"
    if data.held_out == "toys" and not data.familiar:
        return f"one toy of each category held out, {data.validation_images} pairs of these validated on"
    return f"{data.validation_images} images of {'the test set' if data.familiar else 'it'} held out"


def _augmentation(data: DataConfig) -> str:
    """What is done to a training image."""
    others = "others" if data.blank_fraction else "images"
    changes = [
        "two digits of different classes over each other" if data.spec.composition == "pairs" else "",
        "anywhere in a 40x40 frame" if data.spec.composition == "shifted" else "",
        f"resized to {data.resize_pixels} pixels" if data.resize_pixels else "",
        f"windows of {data.crop_pixels} pixels" if data.crop_pixels else "",
        "half of the images mirrored" if data.flip else "",
        *_warp(data.warp),
        f"shifts of up to {data.max_shift_pixels} pixels" if data.max_shift_pixels else "",
        *_light(data),
        f"{data.blank_fraction:.2%} of the images blank, with no class present"
        if data.blank_fraction
        else "",
        f"{data.scribble_fraction:.2%} of the {others} scribbles, noise or letters, with no class present"
        if data.scribble_fraction
        else "",
    ]
    return "; ".join(filter(None, changes)) or "none"


def _warp(warp: WarpConfig | None) -> Iterator[str]:
    """How images are bent."""
    if warp is None:
        return
    least, most = warp.scales
    if warp.rotation_degrees:
        yield f"rotations of up to {warp.rotation_degrees:g} degrees"
    if warp.scales != (1, 1):
        yield f"each axis scaled by {least:g} to {most:g}"
    if warp.shear:
        yield f"shears of up to {warp.shear:g}"
    if warp.elastic_pixels:
        yield f"elastic displacements of {warp.elastic_pixels:g} pixels at 5x5 points"
    if warp.thickness:
        yield f"strokes wider or narrower by up to {warp.thickness:g} pixels on both sides"


def _light(data: DataConfig) -> Iterator[str]:
    """How brightness and contrast are changed."""
    after = data.light == "standardized"
    if data.max_brightness:
        yield f"brightness +- {data.max_brightness:.2g}{' of the standardized image' if after else ''}"
    if data.contrast != (1, 1):
        least, most = data.contrast
        yield f"contrast times {least:g} to {most:g}{', of the standardized image' if after else ''}"


def _first_weights(config: RunConfig) -> str:
    if config.started_from:
        is_new = _has_decoder(config) and not _has_decoder(from_dict(config.started_from["config"]))
        return "those of the stage before" + ("; of the decoder random, PyTorch's" if is_new else "")
    model = config.model
    if isinstance(model, MatrixCapsNetConfig):
        if model.official_routing:
            return "of capsule layers as in the official code, all others random, PyTorch's"
        return "matrices the identity and some noise, all others random, PyTorch's"
    official = isinstance(model, CapsNetConfig) and model.official_initialization
    return "random, as in the official code" if official else "random, PyTorch's"


def _has_decoder(config: RunConfig) -> bool:
    return not isinstance(config.model, CnnConfig) and bool(config.model.decoder_hidden)


def _loss(config: RunConfig) -> str:
    """What was minimized: a sum over classes, over the pixels of each object, and over the weights."""
    loss, model = config.loss, config.model
    assert not isinstance(model, CnnConfig)
    weight = "" if loss.margin_weight == 1 else f"{loss.margin_weight:g} x "
    is_whole = config.optimizer.trained_part == "network"
    parts = [f"{weight}{_classification_loss(loss)}"] if is_whole else []
    if model.decoder_hidden and loss.reconstruction_weight:
        light = "" if loss.reconstruction_target == "image" else " to standardized images"
        parts.append(f"{loss.reconstruction_weight:g} x summed squared pixel error{light}")
    if config.optimizer.weight_decay:
        parts.append(f"{config.optimizer.weight_decay:g} x half the squared weights")
    return ("" if is_whole else "of the decoder alone, ") + " + ".join(parts)


def _classification_loss(loss: LossConfig) -> str:
    match loss.classification:
        case "margin":
            margins = f"m+ {loss.present_margin:g}, m- {loss.absent_margin:g}, lambda {loss.absent_weight:g}"
            return f"margin loss ({margins})"
        case "spread":
            first, last = loss.spread_margins
            if loss.spread_schedule == "official":
                return f"spread loss (margin from {first:g}, growing as in the official code)"
            return f"spread loss (margin from {first:g} to {last:g}, growing linearly)"
        case "cross-entropy":
            return "cross entropy of the probabilities divided by their sum"


def _rate(optimizer: OptimizerConfig) -> str:
    rate = f"rate {optimizer.learning_rate:g}"
    if optimizer.decay_rate != 1:
        decay = f"{optimizer.decay_rate:g}^(step / {optimizer.decay_steps})"
        rate = f"{rate} x {decay}, at least {optimizer.min_learning_rate:g}"
    warmup = f", warm-up of at most {optimizer.warmup_steps} steps" if optimizer.warmup_steps else ""
    return f"{rate}, batch {optimizer.batch_size}{warmup}"


def _cooldown(optimizer: OptimizerConfig) -> str:
    epochs = min(optimizer.cooldown_epochs, optimizer.epochs)
    if not epochs:
        return "none"
    return f"to 0 over the last {f'{epochs} epochs' if epochs > 1 else 'epoch'}"


def origins(origin: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The run whose weights this one began with, the one before that, and so on."""
    while origin:
        yield origin
        origin = origin["config"].get("started_from")  # which the oldest runs do not have


def _stage(origin: dict[str, Any]) -> str:
    """An earlier run in a line."""
    config = from_dict(origin["config"])
    return (
        f"{origin['step']} steps, {_time(origin['train_seconds'])}, "
        f"{_rate(config.optimizer)}: {code(origin['command'])} at commit {origin['source_commit']}"
        f"{', published as ' + origin['bundle'] if 'bundle' in origin else ''}"
    )


def _time(seconds: float) -> str:
    """A time in hours, or in minutes or seconds if it is short."""
    if seconds >= MIN_HOURS * HOUR_S:
        return f"{seconds / HOUR_S:.2f} hours"
    if seconds >= MINUTE_S:
        return f"{seconds / MINUTE_S:.1f} minutes"
    return f"{seconds:.1f} seconds"


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} %"
