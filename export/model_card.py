"""The model card: the manifest's facts in prose, for people."""

from collections.abc import Iterator
from typing import Any

from export.contract.manifest import Manifest


def model_card(manifest: Manifest) -> str:
    """Markdown that says what the model is, how it was trained, how well it does and what it cannot do."""
    return "\n".join([*_summary(manifest), *_training(manifest), *_use(manifest), *LIMITS])


def _summary(manifest: Manifest) -> list[str]:
    model = manifest.parameters
    return [
        f"# {manifest.model}",
        "",
        f"A CapsNet with {manifest.parameter_count:,} parameters, Sec. 4 of *Dynamic Routing Between*",
        f"*Capsules* (Sabour, Frosst, Hinton 2017): Conv1 with {model['conv_channels']} channels, "
        f"{model['primary_types']} types of {model['primary_dim']}-D primary",
        f"capsules, {model['classes']} class capsules of {model['class_dim']} dimensions, "
        f"{model['routing_iterations']} routing iterations.",
        "",
        *[
            f"**{metric.name.replace('_', ' ').capitalize()} {metric.value:.2f} %** ({metric.data}). "
            f"To measure it again: `{metric.command}`"
            for metric in manifest.metrics
        ],
        "",
        *(
            ["An image of two objects is right if both are named.", ""]
            if manifest.objects_per_image > 1
            else []
        ),
    ]


def _training(manifest: Manifest) -> list[str]:
    training, config = manifest.training, manifest.training["config"]
    optimiser, data = config["optimiser"], config["data"]
    rows = {
        "preset": config["preset"],
        "data": f"{data['name']} training set, {data['validation_images']} images of it held out",
        "augmentation": _augmentation(data),
        "loss": f"margin loss + {config['loss']['reconstruction_weight']} x summed squared pixel error",
        "optimiser": f"Adam, {_rate(optimiser)}",
        "cooldown": f"to 0 over the last {optimiser['cooldown_epochs']} epochs",
        "trained": f"{training['step']} steps, {training['epochs']:.3g} of {optimiser['epochs']} epochs, "
        f"{training['train_seconds'] / 3600:.2f} hours",
        "validation error": f"{_percent(training['best_error_percent'])}",
        "seed": config["seed"],
        "hardware": training["hardware"],
        "command": f"`{training['command']}`",
        "resumed": "; ".join(training["resumed"]) or "never",
        "source commit": manifest.source_commit,
    }
    for stage, origin in enumerate(_origins(config["started_from"]), start=1):
        rows[f"{stage} stages before" if stage > 1 else "1 stage before"] = _stage(origin)
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    return ["## Training", "", "| | |", "| --- | --- |", *table, ""]


def _augmentation(data: dict[str, Any]) -> str:
    """What is done to a training image, in order."""
    changes = [
        "two digits of different classes over each other" if data["name"] == "multimnist" else "",
        "anywhere in a 40x40 frame" if data["name"] == "shifted-mnist" else "",
        f"windows of {data['crop_pixels']} pixels" if data.get("crop_pixels") else "",
        "half of the images mirrored" if data.get("flip") else "",
        f"shifts of up to {data['max_shift_pixels']} pixels" if data["max_shift_pixels"] else "",
        f"brightness +- {data['max_brightness']:.2g}" if data.get("max_brightness") else "",
        "contrast times {} to {}".format(*data["contrast"]) if data.get("contrast", [1, 1]) != [1, 1] else "",
        f"{data['blank_share']:.2%} of the images blank, with no class present"
        if data["blank_share"]
        else "",
    ]
    return "; ".join(filter(None, changes)) or "none"


def _rate(optimiser: dict[str, Any]) -> str:
    rate, decay, steps = (optimiser[name] for name in ("learning_rate", "decay_rate", "decay_steps"))
    return f"rate {rate} x {decay}^(step / {steps}), batch {optimiser['batch_size']}"


def _origins(origin: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The run whose weights this one began with, the one before that, and so on."""
    while origin:
        yield origin
        origin = origin["config"].get("started_from")


def _stage(origin: dict[str, Any]) -> str:
    """An earlier run in a line."""
    return (
        f"{origin['step']} steps, {origin['train_seconds'] / 3600:.2f} hours, "
        f"{_rate(origin['config']['optimiser'])}: `{origin['command']}` at commit {origin['source_commit']}"
    )


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} %"


def _use(manifest: Manifest) -> list[str]:
    size = manifest.preprocessing
    return [
        "## Use",
        "",
        f"Input: images float32 [N, {size.height}, {size.width}, {size.channels}], 0 to 1, "
        f"{size.polarity.replace('-', ' ')}.",
        f"Classes: {', '.join(manifest.class_names)}. A probability is the length of a class capsule:",
        "each class stands on its own, so they need not sum to 1.",
        f"PyTorch and ONNX Runtime agreed to {manifest.parity.max_abs_error:.1e} on images of the "
        f"{manifest.parity.images}.",
        "",
    ]


LIMITS = [
    "## Limits",
    "",
    "Trained on one data set of centred objects on a plain background. It has no class for anything else:",
    "what is none of its classes gets low probabilities at best. Rotations and distortions beyond those of",
    "the training images lower the accuracy.",
    "",
]
