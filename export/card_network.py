"""The network of a model card, in sentences."""

from collections.abc import Iterator

import torch

from export.graph import CapsuleNetwork
from training.config import CapsNetConfig, CnnConfig, MatrixCapsNetConfig, RunConfig
from training.models.build import build


def network_sentences(config: RunConfig) -> Iterator[str]:
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
    if model.density_exponent != 1:
        yield f"In the E-step the density is raised to the power {model.density_exponent:g}."
    yield from _calibration(model)
    here, usual = (
        (of.inverse_temperature, of.class_temperature_fraction)
        for of in (model, MatrixCapsNetConfig("matrix-capsnet"))
    )
    of_classes, officially = here[0] * here[1], usual[0] * usual[1]
    if model.activation_logit_sd is not None and of_classes != officially:
        yield (
            f"Lambda of Eq. 2 of the class capsules grows towards {of_classes:g}; in the official code "
            f"towards {officially:g}."
        )
    elif model.activation_logit_sd is None and here != usual:
        yield (
            f"Lambda of Eq. 2 grows towards {here[0]:g}, for the class capsules towards {of_classes:g}; in "
            f"the official code towards {usual[0]:g} and {officially:g}."
        )


def _calibration(model: MatrixCapsNetConfig) -> Iterator[str]:
    """Where lambda and budgets of the convolutional capsules come from, if they were measured."""
    if model.activation_logit_sd is None:
        return
    yield (
        "Lambda and budgets of the convolutional capsules were calibrated on the first batch, so that "
        f"the logits of their activations had a standard deviation of {model.activation_logit_sd:g}."
    )
    if model.calibration_momentum:
        yield (
            f"Each later batch moved both by {model.calibration_momentum:g} of the way to that deviation "
            "and, for each type, to logits of mean 0; beta_a was not learned."
        )
