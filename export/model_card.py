"""The model card: the manifest's facts in prose, for people."""

from collections.abc import Iterator
from typing import Any

from export.contract.manifest import Manifest
from export.evaluate import run_config
from training.config import (
    CapsNetConfig,
    CnnConfig,
    DataConfig,
    LossConfig,
    MatrixCapsNetConfig,
    OptimiserConfig,
    RunConfig,
    from_dict,
)

# Where the name of a data set is not that of its files: what the images are made of.
MADE_OF = {
    "drawn": "digits that the repository draws",
    "multimnist": "pairs of digits of the mnist training set",
    "shifted-mnist": "digits of the mnist training set",
    "cifar10-jpeg": "cifar10 training set, a copy that went through JPEG",
    "toys": "stereo pairs of toys that the repository renders",
    "images": "pictures of one's own, in a folder per class",
}

_CENTRED = "Trained on objects of one data set, each alone, centred and light on a plain dark ground."
LIMITS = {
    "mnist": _CENTRED,
    "drawn": _CENTRED,
    "fashion-mnist": _CENTRED,
    "multimnist": "Trained on two digits of different classes over each other, light on a plain dark ground: "
    "two are named in every image, also where there is one, or three, or the same digit twice.",
    "shifted-mnist": "Trained on one upright digit anywhere in a frame, light on a plain dark ground.",
    "cifar10": "Trained on small photographs of one object that fills most of the picture.",
    "cifar10-jpeg": "Trained on small photographs of one object that fills most of the picture.",
    "svhn": "Trained on photographs of house numbers, cut out around one digit; its neighbours may show.",
    "smallnorb": "Trained on grey stereo pairs of toys on a plain ground.",
    "toys": "Trained on grey stereo pairs of rendered toys on a plain ground, none of them photographs.",
    "images": "Trained on the pictures of one folder and measured on others of the same: what those of a "
    "class have in common there, a ground or a light, may be what it goes by, and then it fails elsewhere.",
}


def model_card(manifest: Manifest) -> str:
    """Markdown that says what the model is, how it was trained, how well it does and what it cannot do."""
    config = run_config(manifest)
    return "\n".join(
        [
            *_summary(manifest, config),
            *_training(manifest, config),
            *_use(manifest),
            *_limits(config),
        ]
    )


def _summary(manifest: Manifest, config: RunConfig) -> list[str]:
    return [
        f"# {manifest.model}",
        "",
        f"A CapsNet with {manifest.parameter_count:,} parameters, as in *Dynamic Routing Between Capsules*",
        f"(Sabour, Frosst, Hinton 2017). {' '.join(_network(config))}",
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


def _network(config: RunConfig) -> Iterator[str]:
    """The network in sentences, and how its weights came to be these."""
    model = config.model
    assert isinstance(model, CapsNetConfig)  # no other network is exported
    yield (
        f"Conv1 with {model.conv_channels} channels, {model.primary_types} types of {model.primary_dim}-D "
        f"primary capsules, {model.classes} class capsules of {model.class_dim} dimensions, "
        f"{model.routing_iterations} routing iterations."
    )
    if model.decoder_hidden:
        yield f"The decoder's hidden layers have {' and '.join(map(str, model.decoder_hidden))} units."
    else:
        yield "It has no decoder."
    if model.standardise:
        yield "The graph brings each image to zero mean and unit variance first."
    if model.learned_priors:
        yield "The routing logits that routing starts with are learned (Sec. 2)."
    if model.none_of_the_above:
        yield 'The routing softmax has one more logit, "none of the above", that no class receives (Sec. 7).'
    if model.capsule_bias:
        yield "Class capsules have a bias before the squash (official code)."
    if model.primary_coupling:
        yield (
            "What PrimaryCapsules convolve is divided by the number of types (official code); in the graph "
            "this is in their weights."
        )
    if config.optimiser.weight_average:
        yield (
            "Its weights are a moving average of those that were trained, of which each step kept "
            f"{config.optimiser.weight_average:g}."
        )


def _training(manifest: Manifest, config: RunConfig) -> list[str]:
    training, optimiser = manifest.training, config.optimiser
    rows = {
        "preset": config.preset,
        "data": _data(config.data),
        "augmentation": _augmentation(config.data),
        "first weights": _first_weights(config),
        "loss": _loss(config.loss, config.model),
        "optimiser": f"Adam, {_rate(optimiser)}",
        "cooldown": _cooldown(optimiser),
        "trained": f"{training['step']} steps, {training['epochs']:.3g} of {optimiser.epochs} epochs, "
        f"{training['train_seconds'] / 3600:.2f} hours",
        "validation error": f"{_percent(training['best_error_percent'])}",
        "seed": config.seed,
        "hardware": training["hardware"],
        "command": f"`{training['command']}`",
        "resumed": "; ".join(training["resumed"]) or "never",
        "source commit": manifest.source_commit,
    }
    for stage, origin in enumerate(_origins(config.started_from), start=1):
        rows[f"{stage} stages before" if stage > 1 else "1 stage before"] = _stage(origin)
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    return ["## Training", "", "| | |", "| --- | --- |", *table, ""]


def _data(data: DataConfig) -> str:
    """Which images were trained on."""
    parts = [
        MADE_OF.get(data.name, f"{data.name} training set"),
        f"{data.validation_images} images of it held out",
        f"at most {data.training_images} of the others trained on" if data.training_images else "",
        f"repeated to {data.epoch_images} an epoch" if data.epoch_images else "",
    ]
    return ", ".join(filter(None, parts))


def _augmentation(data: DataConfig) -> str:
    """What is done to a training image, in order."""
    changes = [
        "two digits of different classes over each other" if data.name == "multimnist" else "",
        "anywhere in a 40x40 frame" if data.name == "shifted-mnist" else "",
        f"resized to {data.resize_pixels} pixels" if data.resize_pixels else "",
        f"windows of {data.crop_pixels} pixels" if data.crop_pixels else "",
        "half of the images mirrored" if data.flip else "",
        f"shifts of up to {data.max_shift_pixels} pixels" if data.max_shift_pixels else "",
        f"brightness +- {data.max_brightness:.2g}" if data.max_brightness else "",
        "contrast times {:g} to {:g}".format(*data.contrast) if data.contrast != (1, 1) else "",
        f"{data.blank_share:.2%} of the images blank, with no class present" if data.blank_share else "",
    ]
    return "; ".join(filter(None, changes)) or "none"


def _first_weights(config: RunConfig) -> str:
    if config.started_from:
        return "those of the stage before"
    official = isinstance(config.model, CapsNetConfig) and config.model.official_initialisation
    return "random, as in the official code" if official else "random, PyTorch's"


def _loss(loss: LossConfig, model: CapsNetConfig | MatrixCapsNetConfig | CnnConfig) -> str:
    """What was minimised: a sum over classes, and over the pixels of each object."""
    margin = (
        f"margin loss (m+ {loss.present_margin:g}, m- {loss.absent_margin:g}, lambda {loss.absent_weight:g})"
    )
    if loss.margin_weight != 1:
        margin = f"{loss.margin_weight:g} x {margin}"
    if isinstance(model, CapsNetConfig) and model.decoder_hidden and loss.reconstruction_weight:
        return f"{margin} + {loss.reconstruction_weight:g} x summed squared pixel error"
    return margin


def _rate(optimiser: OptimiserConfig) -> str:
    return (
        f"rate {optimiser.learning_rate:g} x {optimiser.decay_rate:g}^(step / {optimiser.decay_steps}), "
        f"at least {optimiser.min_learning_rate:g}, batch {optimiser.batch_size}"
    )


def _cooldown(optimiser: OptimiserConfig) -> str:
    epochs = optimiser.cooldown_epochs
    if not epochs:
        return "none"
    return f"to 0 over the last {f'{epochs} epochs' if epochs > 1 else 'epoch'}"


def _origins(origin: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The run whose weights this one began with, the one before that, and so on."""
    while origin:
        yield origin
        origin = origin["config"].get("started_from")  # which the oldest runs do not have


def _stage(origin: dict[str, Any]) -> str:
    """An earlier run in a line."""
    config = from_dict(origin["config"])
    return (
        f"{origin['step']} steps, {origin['train_seconds'] / 3600:.2f} hours, "
        f"{_rate(config.optimiser)}: `{origin['command']}` at commit {origin['source_commit']}"
    )


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} %"


def _use(manifest: Manifest) -> list[str]:
    size = manifest.preprocessing
    polarity = "of any polarity" if size.polarity == "any" else size.polarity.replace("-", " ")
    return [
        "## Use",
        "",
        f"Input: images float32 [N, {size.height}, {size.width}, {size.channels}], 0 to 1, {polarity}.",
        f"Classes: {', '.join(manifest.class_names)}. A probability is the length of a class capsule:",
        "each class stands on its own, so they need not sum to 1.",
        f"PyTorch and ONNX Runtime agreed to {manifest.parity.max_abs_error:.1e} on images "
        f"({manifest.parity.images}).",
        "",
    ]


def _limits(config: RunConfig) -> list[str]:
    stages = [config, *(from_dict(origin["config"]) for origin in _origins(config.started_from))]
    has_seen_blanks = any(stage.data.blank_share for stage in stages)
    return [
        "## Limits",
        "",
        LIMITS[config.data.name],
        "It has no class for anything else: what is none of its classes gets low probabilities at best.",
        "Rotations and distortions beyond those of the training images lower the accuracy.",
        *([] if has_seen_blanks else ["It has never seen an empty image, and may be sure of one."]),
        "",
    ]
