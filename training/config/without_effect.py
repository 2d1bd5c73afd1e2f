"""Settings that would silently have no effect, or not theirs, beside others of the same preset.

They are refused in presets alone. A run that an earlier version started with them can still be read, and
experiments change one setting of a preset at a time.
"""

from collections.abc import Iterator
from dataclasses import asdict

from training.config.loss import LossConfig
from training.config.model import CnnConfig, MatrixCapsNetConfig
from training.config.run import RunConfig

LOSS_OF = {  # the classification loss that each is a setting of
    "present_margin": "margin",
    "absent_margin": "margin",
    "absent_weight": "margin",
    "spread_margins": "spread",
    "spread_schedule": "spread",
}
OF_A_CNN = {("classification", "cross-entropy"), ("reconstruction_weight", 0.0)}
DECODER_OPTIONS = ("reconstruction_weight", "reconstruction_target")


def settings_without_effect(config: RunConfig) -> Iterator[str]:
    """What is wrong with each, in words that begin with its name."""
    if isinstance(config.model, CnnConfig) and config.model.exclusive:
        yield from _of_exclusive_classes(config)
    if isinstance(config.model, MatrixCapsNetConfig):
        yield from _of_routing(config.model)
    if config.optimizer.trained_part == "decoder":
        yield from _of_a_decoder_alone(config)
    yield from _of_loss(config)
    if config.loss.present_margin < config.loss.absent_margin:
        yield f"loss.present_margin: below loss.absent_margin, {config.loss.absent_margin:g}"
    data = config.data
    changes = data.max_brightness or data.contrast != (1, 1)
    if changes and data.light == "standardized" and not config.model.standardize_per_image:
        yield (
            "data.light: the network does not standardize its images, model.standardize_per_image is false; "
            'set it to "pixels"'
        )


def _of_loss(config: RunConfig) -> Iterator[str]:
    """Of another loss than the network is trained with, or of a decoder that it has not."""
    loss = config.loss
    changed = [name for name, default in asdict(LossConfig()).items() if getattr(loss, name) != default]
    for option in changed:
        if isinstance(config.model, CnnConfig):
            says_what_is = (option, getattr(loss, option)) in OF_A_CNN
            if option != "margin_weight" and not says_what_is:
                yield f"loss.{option}: has no effect on a convolutional network: cross entropy and no decoder"
        elif LOSS_OF.get(option, loss.classification) != loss.classification:
            yield f"loss.{option}: has no effect, loss.classification is {loss.classification}"
        elif option in DECODER_OPTIONS and getattr(loss, option) and not config.model.decoder_hidden:
            yield f"loss.{option}: has no effect without a decoder, model.decoder_hidden is empty"


def _of_a_decoder_alone(config: RunConfig) -> Iterator[str]:
    if not config.loss.reconstruction_weight:
        yield "loss.reconstruction_weight: with 0, a decoder alone learns nothing"
    if config.optimizer.stop_at_error_percent is not None:
        yield (
            "optimizer.stop_at_error_percent: a decoder alone changes no answer: it would be trained for one "
            "epoch, or is never stopped by this"
        )


def _of_exclusive_classes(config: RunConfig) -> Iterator[str]:
    """Their cross entropy, of a softmax, is for images of one object; of an image without one it is 0."""
    data = config.data
    for option in ("blank_fraction", "scribble_fraction"):
        if getattr(data, option):
            yield (
                f"data.{option}: a network of exclusive classes learns nothing from an image without an "
                "object; set model.exclusive = false"
            )
    if data.spec.objects_per_image > 1:
        yield (
            f"model.exclusive: an image of {data.name} shows {data.spec.objects_per_image} classes; set it "
            "to false"
        )


def _of_routing(model: MatrixCapsNetConfig) -> Iterator[str]:
    if model.official_routing and model.matrix_noise != MatrixCapsNetConfig.matrix_noise:
        yield "model.matrix_noise: has no effect with official_routing, which has its own initial matrices"
    for option in ("activation_logit_sd", "calibration_momentum"):
        if model.mixing_proportions and getattr(model, option):
            yield f"model.{option}: has no effect with mixing_proportions, which nothing calibrates"
    for option in ("inverse_temperature", "class_temperature_fraction"):
        changed = getattr(model, option) != getattr(MatrixCapsNetConfig, option)
        if model.mixing_proportions and changed:
            yield f"model.{option}: has no effect with mixing_proportions, which have no lambda"
    if model.routing_iterations == 1 and model.density_exponent != 1:
        yield "model.density_exponent: has no effect with one iteration of routing, which has no E-step"
