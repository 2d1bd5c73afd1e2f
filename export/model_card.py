"""The model card: the manifest's facts in prose, for people."""

from collections.abc import Iterator
from typing import Any

import torch

from export.contract.manifest import Manifest
from export.evaluate import run_config
from export.graph import CapsuleNetwork
from training.config import (
    CapsNetConfig,
    CnnConfig,
    DataConfig,
    LossConfig,
    MatrixCapsNetConfig,
    OptimizerConfig,
    RunConfig,
    from_dict,
)
from training.models.build import build
from training.models.matrix_capsules import COORDINATES, OFFICIAL_COORDINATES

CARD_FILE = "MODEL_CARD.md"

PAPERS = {
    "capsnet": "A CapsNet with {:,} parameters, as in *Dynamic Routing Between Capsules*\n"
    "(Sabour, Frosst, Hinton 2017)",
    "matrix-capsnet": "Matrix capsules with {:,} parameters, as in *Matrix Capsules with EM Routing*\n"
    "(Hinton, Sabour, Frosst 2018)",
}
EACH_ALONE = "each class stands on its own, so they need not sum to 1."
PROPORTIONS = "a share of what is assigned to all classes, so they sum to 1."


def model_card(manifest: Manifest) -> str:
    """Markdown that says what the model is, how it was trained, how well it does and what it cannot do."""
    config = run_config(manifest)
    return "\n".join(
        [
            *_summary(manifest, config),
            *_training(manifest, config),
            *_use(manifest),
            *_confidence(manifest),
            *_limits(config),
        ]
    )


def _summary(manifest: Manifest, config: RunConfig) -> list[str]:
    paper = PAPERS[manifest.architecture].format(manifest.parameter_count)
    return [
        f"# {manifest.model}",
        "",
        f"{paper}. {' '.join(_network(config))}",
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
    assert not isinstance(model, CnnConfig)  # which is never exported
    yield from _capsnet(model) if isinstance(model, CapsNetConfig) else _matrix_capsnet(model)
    if model.decoder_hidden:
        yield (
            f"The decoder's hidden layers have {' and '.join(map(str, model.decoder_hidden))} units; "
            f"{_decoder_parameters(model):,} of the parameters are its own"
            + (", which the paper's network has not." if isinstance(model, MatrixCapsNetConfig) else ".")
        )
    else:
        yield "It has no decoder."
    if model.standardize_per_image:
        yield f"The graph brings each {_input(model)} to zero mean and unit variance first."
    if config.optimizer.ema_decay:
        yield (
            "Its weights are a moving average of those that were trained, of which each step kept "
            f"{config.optimizer.ema_decay:g}."
        )


def _decoder_parameters(model: CapsNetConfig | MatrixCapsNetConfig) -> int:
    with torch.device("meta"):
        network = build(model)
    assert isinstance(network, CapsuleNetwork)
    assert network.decoder
    return sum(parameter.numel() for parameter in network.decoder.parameters())


def _iterations(model: CapsNetConfig | MatrixCapsNetConfig) -> str:
    """Of routing, in words; both papers have as many."""
    usual = CapsNetConfig.routing_iterations
    count = f"{model.routing_iterations} routing iteration{'s' if model.routing_iterations > 1 else ''}"
    return count if model.routing_iterations == usual else f"{count} ({usual} in the paper)"


def _input(model: CapsNetConfig | MatrixCapsNetConfig) -> str:
    return "stereo pair" if model.image_channels == 2 else "image"


def _capsnet(model: CapsNetConfig) -> Iterator[str]:
    """Layers of the first paper, and what they have that its own do not."""
    yield (
        f"Conv1 with {model.conv_channels} channels, {model.primary_types} types of {model.primary_dim}-D "
        f"primary capsules, {model.classes} class capsules of {model.class_dim} dimensions, "
        f"{_iterations(model)}."
    )
    for layer in model.stem:
        yield (
            f"Before Conv1 there is a convolution with {layer.channels} channels, kernels of "
            f"{layer.kernel}x{layer.kernel} and stride {layer.stride}."
        )
    if model.kernel != CapsNetConfig.kernel:
        yield (
            f"The kernels of Conv1 and PrimaryCapsules are {model.kernel}x{model.kernel} "
            f"({CapsNetConfig.kernel}x{CapsNetConfig.kernel} in the paper)."
        )
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


def _matrix_capsnet(model: MatrixCapsNetConfig) -> Iterator[str]:
    """Layers of the second paper, and which of its ablations this is."""
    first, second = model.conv_caps_types
    yield (
        f"A convolution with {model.conv_channels} channels (A), {model.primary_types} types of primary "
        f"capsules (B), {first} and {second} of convolutional capsules (C and D), {model.classes} class "
        f"capsules, {_iterations(model)}."
    )
    if model.vector_poses:
        yield "Poses are vectors of 16 that 16x16 matrices transform, not matrices (Table 1)."
    if not model.coordinate_addition:
        yield "Votes for the class capsules know nothing of where they come from (Table 1)."
    if model.mixing_proportions:
        yield "Activations are mixing proportions: shares of what is assigned to a layer's capsules (Sec. 5)."
    if model.official_routing:
        yield "Routing is the official code's where that is not the paper's."
    here, usual = (
        (of.inverse_temperature, of.class_temperature_fraction)
        for of in (model, MatrixCapsNetConfig("matrix-capsnet"))
    )
    if here != usual:
        yield (
            f"Lambda of Eq. 2 grows towards {here[0]:g}, for the class capsules towards "
            f"{here[0] * here[1]:g}; in the official code towards {usual[0]:g} and {usual[0] * usual[1]:g}."
        )


def _training(manifest: Manifest, config: RunConfig) -> list[str]:
    training, optimizer = manifest.training, config.optimizer
    rows = {  # worded as in the cards of shipped bundles, which tests compare
        "preset": config.preset,
        "data": _data(config.data),
        "augmentation": _augmentation(config.data),
        "first weights": _first_weights(config),
        "loss": _loss(config),
        "optimiser": f"Adam, {_rate(optimizer)}",
        "cooldown": _cooldown(optimizer),
        "trained": f"{training['step']} steps, {training['epochs']:.3g} of {optimizer.epochs} epochs, "
        f"{training['train_seconds'] / 3600:.2f} hours",
        "validation error": f"{_percent(training['best_error_percent'])}",
        "seed": config.seed,
        "hardware": training["hardware"],
        "command": f"`{training['command']}`",
        "resumed": "; ".join(training["resumed"]) or "never",
        "source commit": manifest.source_commit,
    }
    if optimizer.patience_epochs:
        rows["end"] = f"when {optimizer.patience_epochs} epochs have not improved validation"
    if "times_measured" in training:  # older versions did not count
        rows["test set"] = _times_measured(training)
    for stage, origin in enumerate(_origins(config.started_from), start=1):
        rows[f"{stage} stages before" if stage > 1 else "1 stage before"] = _stage(origin)
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    return ["## Training", "", "| | |", "| --- | --- |", *table, ""]


def _times_measured(training: dict[str, Any]) -> str:
    """How often somebody had looked at the test error before this version was published."""
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
    """What is done to a training image, in order."""
    changes = [
        "two digits of different classes over each other" if data.spec.composition == "pairs" else "",
        "anywhere in a 40x40 frame" if data.spec.composition == "shifted" else "",
        f"resized to {data.resize_pixels} pixels" if data.resize_pixels else "",
        f"windows of {data.crop_pixels} pixels" if data.crop_pixels else "",
        "half of the images mirrored" if data.flip else "",
        f"shifts of up to {data.max_shift_pixels} pixels" if data.max_shift_pixels else "",
        *_light(data),
        f"{data.blank_fraction:.2%} of the images blank, with no class present"
        if data.blank_fraction
        else "",
    ]
    return "; ".join(filter(None, changes)) or "none"


def _light(data: DataConfig) -> Iterator[str]:
    """How brightness and contrast are changed."""
    after = data.light == "standardized"
    if data.max_brightness:
        yield f"brightness +- {data.max_brightness:.2g}{' of the standardised image' if after else ''}"
    if data.contrast != (1, 1):
        least, most = data.contrast
        yield f"contrast times {least:g} to {most:g}{', of the standardised image' if after else ''}"


def _first_weights(config: RunConfig) -> str:
    if config.started_from:
        return "those of the stage before"
    model = config.model
    if isinstance(model, MatrixCapsNetConfig):
        if model.official_routing:
            return "of capsule layers as in the official code, all others random, PyTorch's"
        return "matrices the identity and some noise, all others random, PyTorch's"
    official = isinstance(model, CapsNetConfig) and model.official_initialization
    return "random, as in the official code" if official else "random, PyTorch's"


def _loss(config: RunConfig) -> str:
    """What was minimised: a sum over classes, over the pixels of each object, and over the weights."""
    loss, model = config.loss, config.model
    assert not isinstance(model, CnnConfig)
    weight = "" if loss.margin_weight == 1 else f"{loss.margin_weight:g} x "
    parts = [f"{weight}{_classification_loss(loss)}"]
    if model.decoder_hidden and loss.reconstruction_weight:
        parts.append(f"{loss.reconstruction_weight:g} x summed squared pixel error")
    if config.optimizer.weight_decay:
        parts.append(f"{config.optimizer.weight_decay:g} x half the squared weights")
    return " + ".join(parts)


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
    rate, batch = f"rate {optimizer.learning_rate:g}", f"batch {optimizer.batch_size}"
    if optimizer.decay_rate == 1:
        return f"{rate}, {batch}"
    decay = f"{optimizer.decay_rate:g}^(step / {optimizer.decay_steps})"
    return f"{rate} x {decay}, at least {optimizer.min_learning_rate:g}, {batch}"


def _cooldown(optimizer: OptimizerConfig) -> str:
    epochs = optimizer.cooldown_epochs
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
        f"{_rate(config.optimizer)}: `{origin['command']}` at commit {origin['source_commit']}"
        f"{', published as ' + origin['bundle'] if 'bundle' in origin else ''}"
    )


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} %"


def _use(manifest: Manifest) -> list[str]:
    facts = manifest.preprocessing
    polarity = "of any polarity" if facts.polarity == "any" else facts.polarity.replace("-", " ")
    kind = "stereo pairs, the left view first," if manifest.views == 2 else "images"
    is_matrix = manifest.architecture == "matrix-capsnet"
    return [
        "## Use",
        "",
        f"Input: {kind} float32 [N, {facts.height}, {facts.width}, {facts.channels}], 0 to 1, {polarity}.",
        f"Classes: {', '.join(manifest.class_names)}. A probability is the "
        f"{'activation' if is_matrix else 'length'} of a class capsule:",
        PROPORTIONS if manifest.parameters.get("mixing_proportions") else EACH_ALONE,
        *([_pose(manifest)] if is_matrix else []),
        f"PyTorch and ONNX Runtime agreed to {manifest.parity.max_abs_error:.1e} on images "
        f"({manifest.parity.images}).",
        "",
    ]


def _confidence(manifest: Manifest) -> list[str]:
    """From which probability on an answer is confident, and what that is worth."""
    found = manifest.confidence
    if found is None:
        return []
    named = "each of the classes that it names is" if manifest.objects_per_image > 1 else "its class is"
    return [
        "## Confidence",
        "",
        f"An answer is confident if {named} as probable as {found.min_probability:g}: "
        f"{found.right_confident} of {found.right} right answers reach it, and {found.wrong_confident} of "
        f"{found.wrong} wrong ones ({found.data}). "
        f"To measure it again: `{found.command}`",
        "",
    ]


def _pose(manifest: Manifest) -> str:
    """What the numbers of a matrix capsule's pose are."""
    if len(manifest.pose_shape) == 1:
        return f"A pose is a vector of {manifest.pose_shape[0]} numbers, of any size."
    rows, columns = manifest.pose_shape
    matrix = f"A pose is a {rows}x{columns} matrix of numbers of any size, row by row."
    if not manifest.parameters.get("coordinate_addition"):
        return matrix
    official = manifest.parameters.get("official_routing")
    first, second = OFFICIAL_COORDINATES if official else COORDINATES
    places = "where the object's parts are: row and column, 0 to 1"
    return f"{matrix} Elements {first} and {second} have in them {places}."


def _limits(config: RunConfig) -> list[str]:
    stages = [config, *(from_dict(origin["config"]) for origin in _origins(config.started_from))]
    has_seen_blanks = any(stage.data.blank_fraction for stage in stages)
    return [
        "## Limits",
        "",
        config.data.spec.limits,
        "It has no class for anything else: what is none of its classes gets low probabilities at best.",
        "Rotations and distortions beyond those of the training images lower the accuracy.",
        *([] if has_seen_blanks else ["It has never seen an empty image, and may be sure of one."]),
        "",
    ]
