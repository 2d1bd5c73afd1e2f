"""What can be configured, one frozen dataclass per thing; `presets/*.toml` are their values."""

import tomllib
from dataclasses import field
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=_STRICT)
class CapsNetConfig:
    """Architecture of a CapsNet (Sec. 4, Sabour et al. 2017); the defaults are the paper's MNIST network.

    Attributes:
        image_size: height and width of the input, pixels.
        image_channels: 1 for grey, 3 for RGB, 2 for a stereo pair.
        standardise: bring each image to zero mean and unit variance before Conv1.
        conv_channels: kernels of Conv1.
        primary_types: capsule types in PrimaryCapsules.
        primary_dim: length of a primary capsule's pose.
        classes: capsules in the class layer (DigitCaps).
        class_dim: length of a class capsule's pose.
        routing_iterations: iterations of routing by agreement.
        learned_priors: learn the initial logits b_ij (Sec. 2); else they start at 0.
        none_of_the_above: an extra logit in the routing softmax that no class receives (Sec. 7).
        capsule_bias: add a learned bias to the class capsules before the squash (official code).
        decoder_hidden: widths of the decoder's hidden layers; empty means no decoder.
    """

    image_size: int = Field(default=28, ge=17)
    image_channels: int = Field(default=1, ge=1)
    standardise: bool = False
    conv_channels: int = Field(default=256, ge=1)
    primary_types: int = Field(default=32, ge=1)
    primary_dim: int = Field(default=8, ge=1)
    classes: int = Field(default=10, ge=2)
    class_dim: int = Field(default=16, ge=1)
    routing_iterations: int = Field(default=3, ge=1)
    learned_priors: bool = False
    none_of_the_above: bool = False
    capsule_bias: bool = False
    decoder_hidden: tuple[Annotated[int, Field(ge=1)], ...] = (512, 1024)


@dataclass(frozen=True, config=_STRICT)
class LossConfig:
    """Margin loss (Eq. 4) and the weight of the summed squared pixel error (Sec. 4.1)."""

    present_margin: float = Field(default=0.9, ge=0, le=1)
    absent_margin: float = Field(default=0.1, ge=0, le=1)
    absent_weight: float = Field(default=0.5, ge=0)
    reconstruction_weight: float = Field(default=0.0005, ge=0)


@dataclass(frozen=True, config=_STRICT)
class DataConfig:
    """Which images, how they are augmented, and how many of the training images are held out.

    Attributes:
        name: the data set.
        max_shift_pixels: each image moves by up to this much per axis, zero padded.
        validation_images: taken from the training set by a seeded permutation, never trained on.
        blank_share: of the training images, shown blank with no class present (0 in the paper). A network
            that has never seen an empty image may take it for one of its classes with confidence.
    """

    name: Literal["mnist", "drawn", "fashion-mnist", "cifar10", "cifar10-jpeg", "svhn", "smallnorb"] = "mnist"
    max_shift_pixels: int = Field(default=2, ge=0, le=16)
    validation_images: int = Field(default=5000, ge=1)
    blank_share: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True, config=_STRICT)
class OptimiserConfig:
    """Adam with TensorFlow's defaults and an exponentially decaying rate.

    The rate at step t is max(learning_rate * decay_rate ** (t / decay_steps), min_learning_rate). A run of
    few epochs ends better when it also falls linearly to 0 over the last `cooldown_epochs` (0 in the paper).
    """

    batch_size: int = Field(default=128, ge=1)
    epochs: int = Field(default=300, ge=1)
    learning_rate: float = Field(default=0.001, gt=0)
    decay_rate: float = Field(default=0.96, gt=0, le=1)
    decay_steps: int = Field(default=2000, ge=1)
    min_learning_rate: float = Field(default=1e-6, ge=0)
    cooldown_epochs: int = Field(default=0, ge=0)


@dataclass(frozen=True, config=_STRICT)
class RunConfig:
    """All that determines a training run, saved with its checkpoint.

    Attributes:
        preset: where the values come from.
        seed: of the weights, the order of the images and their shifts.
        started_from: the run whose weights this one began with, and how they came about; None if random.
    """

    preset: str = "mnist"
    seed: int = Field(default=0, ge=0, lt=2**63)
    model: CapsNetConfig = field(default_factory=CapsNetConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    started_from: dict[str, Any] | None = None


_ADAPTER = TypeAdapter(RunConfig)


def presets() -> list[str]:
    """Names of the presets that come with the package."""
    folder = files("training") / "presets"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_preset(name: str) -> RunConfig:
    """Read a preset by name.

    Raises:
        ValueError: there is no preset of that name, or a value in it is wrong.
    """
    if name not in presets():
        raise ValueError(f"no preset {name!r}; there are {', '.join(presets())}")
    text = (files("training") / "presets" / f"{name}.toml").read_text()
    return from_dict({"preset": name, **tomllib.loads(text)})


def from_dict(values: dict[str, Any]) -> RunConfig:
    """Build a configuration from nested dictionaries (TOML or JSON).

    Raises:
        ValueError: an unknown key or a value out of range; names each.
    """
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ValueError(f"configuration: {faults}") from None


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain dictionaries, the inverse of `from_dict`."""
    plain: dict[str, Any] = _ADAPTER.dump_python(config, mode="json")
    return plain
