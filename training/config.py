"""What can be configured, one frozen dataclass per thing; `presets/*.toml` are their values."""

import tomllib
from dataclasses import field
from difflib import get_close_matches
from importlib.resources import files
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, config=_STRICT)
class StemConvolution:
    """A convolution with ReLU and without padding, before a CapsNet's Conv1.

    Attributes:
        channels: kernels.
        kernel: height and width of each, pixels.
        stride: along both axes.
    """

    channels: int = Field(ge=1)
    kernel: int = Field(ge=1)
    stride: int = Field(default=1, ge=1)


PRIMARY_STRIDE = 2  # of PrimaryCapsules, Sec. 4


@dataclass(frozen=True, config=_STRICT)
class CapsNetConfig:
    """Architecture of a CapsNet (Sec. 4, Sabour et al. 2017); the defaults are the paper's MNIST network.

    Attributes:
        architecture: which of the networks this is.
        image_size: height and width of the input, pixels.
        image_channels: 1 for grey, 3 for RGB, 2 for a stereo pair.
        standardise: bring each image to zero mean and unit variance before the first convolution.
        stem: convolutions before Conv1, none in the paper; with a stride they spare a CPU most of the work.
        conv_channels: kernels of Conv1.
        kernel: height and width of the kernels of Conv1 and PrimaryCapsules, pixels.
        primary_types: capsule types in PrimaryCapsules.
        primary_dim: length of a primary capsule's pose.
        classes: capsules in the class layer (DigitCaps).
        class_dim: length of a class capsule's pose.
        routing_iterations: iterations of routing by agreement.
        learned_priors: learn the initial logits b_ij (Sec. 2); else they start at 0.
        none_of_the_above: an extra logit in the routing softmax that no class receives (Sec. 7).
        capsule_bias: add a learned bias to the class capsules before the squash (official code).
        primary_coupling: divide what PrimaryCapsules convolve by the number of types before the bias is
            added, as one iteration of routing from a single capsule to all types does (official code).
        official_initialisation: begin with the official code's weights and biases, not with PyTorch's.
        decoder_hidden: widths of the decoder's hidden layers; empty means no decoder.
    """

    architecture: Literal["capsnet"] = "capsnet"
    image_size: int = Field(default=28, ge=1)
    image_channels: int = Field(default=1, ge=1)
    standardise: bool = False
    stem: tuple[StemConvolution, ...] = ()
    conv_channels: int = Field(default=256, ge=1)
    kernel: int = Field(default=9, ge=1)
    primary_types: int = Field(default=32, ge=1)
    primary_dim: int = Field(default=8, ge=1)
    classes: int = Field(default=10, ge=2)
    class_dim: int = Field(default=16, ge=1)
    routing_iterations: int = Field(default=3, ge=1)
    learned_priors: bool = False
    none_of_the_above: bool = False
    capsule_bias: bool = False
    primary_coupling: bool = False
    official_initialisation: bool = False
    decoder_hidden: tuple[Annotated[int, Field(ge=1)], ...] = (512, 1024)

    def __post_init__(self) -> None:
        least = 1  # pixels along a side that one primary capsule sees
        for kernel, stride in reversed(self._convolutions()):
            least = (least - 1) * stride + kernel
        if self.image_size < least:
            raise ValueError(f"image_size must be at least {least} pixels, got {self.image_size}")

    @property
    def primary_size(self) -> int:
        """Rows of primary capsules, and columns."""
        size = self.image_size
        for kernel, stride in self._convolutions():
            size = (size - kernel) // stride + 1
        return size

    def _convolutions(self) -> list[tuple[int, int]]:
        """Kernel and stride of each, in order."""
        stem = [(layer.kernel, layer.stride) for layer in self.stem]
        return [*stem, (self.kernel, 1), (self.kernel, PRIMARY_STRIDE)]


@dataclass(frozen=True, config=_STRICT)
class MatrixCapsNetConfig:
    """Architecture of matrix capsules (Sec. 4, Hinton et al. 2018), by default the paper's for smallNORB.

    Attributes:
        architecture: which of the networks this is.
        image_size: height and width of the input, pixels.
        image_channels: 1 for grey, 3 for RGB, 2 for a stereo pair.
        standardise: bring each image to zero mean and unit variance before the convolution.
        conv_channels: A, kernels of the convolution.
        primary_types: B, types of primary capsules.
        conv_caps_types: C and D, types of the two convolutional capsule layers.
        classes: class capsules.
        routing_iterations: of EM routing.
        coordinate_addition: add their places to the votes for the class capsules.
        vector_poses: poses are vectors of 16, transformed by 16x16 matrices, not 4x4 by 4x4 (Table 1).
        mixing_proportions: activations are shares of what is assigned to the parents, not Eq. 2 (Sec. 5).
        official_routing: as the official code has it where that is not the paper: a tenth of a mean stays
            from one iteration to the next, costs beside beta_a count double, other first values of matrices
            and betas, coordinates are added to the first two elements of a vote. Not taken over: its
            convolutional capsules assign a child anew to the positions of each parent type apart, J times as
            much in all as in Procedure 1, and at first 1 / J at every position; its coordinates are
            (pixel - 16) / 100.
        inverse_temperature: lambda of Eq. 2 in the last of very many iterations (official code).
        class_temperature_share: lambda of the class capsules in units of that of the other layers: many more
            children vote for each of them (official code).
        decoder_hidden: widths of the hidden layers of a decoder of the class capsules' poses; empty means
            none, as in the paper.
    """

    architecture: Literal["matrix-capsnet"]
    image_size: int = Field(default=32, ge=17)
    image_channels: int = Field(default=2, ge=1)
    standardise: bool = True
    conv_channels: int = Field(default=32, ge=1)
    primary_types: int = Field(default=32, ge=1)
    conv_caps_types: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (32, 32)
    classes: int = Field(default=5, ge=2)
    routing_iterations: int = Field(default=3, ge=1)
    coordinate_addition: bool = True
    vector_poses: bool = False
    mixing_proportions: bool = False
    official_routing: bool = False
    inverse_temperature: float = Field(default=0.01, gt=0)
    class_temperature_share: float = Field(default=0.25, gt=0)
    decoder_hidden: tuple[Annotated[int, Field(ge=1)], ...] = ()

    def __post_init__(self) -> None:
        if self.official_routing and self.mixing_proportions:
            raise ValueError("mixing_proportions: official_routing has activations by Eq. 2")


@dataclass(frozen=True, config=_STRICT)
class Block:
    """A convolution with ReLU that keeps the size of its maps, then max-pooling of 2x2 or none.

    Attributes:
        channels: kernels.
        kernel: height and width of each, pixels; odd.
        pooled: whether the maps are halved after it.
    """

    channels: int = Field(ge=1)
    kernel: int = Field(ge=1)
    pooled: bool = False

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")


@dataclass(frozen=True, config=_STRICT)
class CnnConfig:
    """Architecture of a convolutional network to compare with.

    Those of Sec. 5, 5.2 and 6.1, Sabour et al. 2017, and of Sec. 5, Hinton et al. 2018.

    Attributes:
        architecture: which of the networks this is.
        image_size: height and width of the input, pixels.
        image_channels: 1 for grey, 3 for RGB, 2 for a stereo pair.
        standardise: bring each image to zero mean and unit variance before the first convolution.
        classes: logits.
        blocks: the convolutions, in order.
        hidden: widths of the fully connected layers before the logits.
        dropout: share of the last hidden layer that is left out in training.
        exclusive: an image shows exactly one class: probabilities are a softmax, else a sigmoid per class.
    """

    architecture: Literal["cnn"]
    image_size: int = Field(default=28, ge=1)
    image_channels: int = Field(default=1, ge=1)
    standardise: bool = False
    classes: int = Field(default=10, ge=2)
    blocks: tuple[Block, ...] = Field(min_length=1, kw_only=True)
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = ()
    dropout: float = Field(default=0.0, ge=0, lt=1)
    exclusive: bool = True


def _architecture(model: Any) -> str:
    """Which configuration the values of a model are for; a CapsNet unless they say otherwise."""
    if isinstance(model, dict):
        return str(model.get("architecture", "capsnet"))
    return str(getattr(model, "architecture", model))


ModelConfig = Annotated[
    Annotated[CapsNetConfig, Tag("capsnet")]
    | Annotated[MatrixCapsNetConfig, Tag("matrix-capsnet")]
    | Annotated[CnnConfig, Tag("cnn")],
    Discriminator(_architecture),
]


Margin = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=_STRICT)
class LossConfig:
    """How a capsule network's answers are judged; Eq. 4 and Sec. 4.1 of Sabour et al. 2017 by default.

    Attributes:
        classification: margin loss (Eq. 4), spread loss (Eq. 3, Hinton et al. 2018), or the cross entropy of
            the probabilities, divided by their sum. A convolutional network always has its cross entropy.
        present_margin: a present class's capsule shall be at least so long.
        absent_margin: an absent class's capsule shall be at most so long.
        absent_weight: of the absent classes' loss, beside that of the present ones.
        margin_weight: of the whole classification loss; 0.05 is the official code's, half of Eq. 4 as a mean
            over 10 classes.
        spread_margins: of spread loss, at the beginning and at the end of training.
        spread_schedule: how the margin grows: linearly, or as in the official code, along a sigmoid of
            700,000 steps.
        reconstruction_weight: of the squared pixel error, summed over pixels and, of several objects, over
            these.
    """

    classification: Literal["margin", "spread", "cross-entropy"] = "margin"
    present_margin: float = Field(default=0.9, ge=0, le=1)
    absent_margin: float = Field(default=0.1, ge=0, le=1)
    absent_weight: float = Field(default=0.5, ge=0)
    margin_weight: float = Field(default=1.0, gt=0)
    spread_margins: tuple[Margin, Margin] = (0.2, 0.9)
    spread_schedule: Literal["linear", "official"] = "linear"
    reconstruction_weight: float = Field(default=0.0005, ge=0)

    def __post_init__(self) -> None:
        first, last = self.spread_margins
        if last < first:
            raise ValueError(f"spread_margins: they grow, got {first:g} and then {last:g}")


# Of a DataConfig, by the name of its data set: an image is made of MNIST's digits in one way alone.
NO_EFFECT = {
    "multimnist": ("resize_pixels", "crop_pixels", "flip", "max_brightness", "contrast", "blank_share"),
    "shifted-mnist": ("resize_pixels", "crop_pixels"),
}


@dataclass(frozen=True, config=_STRICT)
class DataConfig:
    """Which images, how they are prepared and augmented, and how many are held out.

    Attributes:
        name: the data set. `multimnist` is pairs of MNIST's digits, `shifted-mnist` these digits anywhere in
            a 40x40 frame, `toys` a set like smallnorb that the repository makes, `images` a folder of one's
            own.
        folder: of `images`; it holds one folder of pictures per class.
        folder_digest: of `images`; of the names of all that the folder held when the run was started.
        class_names: of `images`, in the order of the labels.
        resize_pixels: pictures are brought to this height and width; None leaves them.
        crop_pixels: a window of this height and width is taken: anywhere to train on, the central one to
            measure on; None takes all.
        max_shift_pixels: each image moves by up to this much per axis, zero padded (of `images`, its edge is
            repeated); of a pair each digit, in a frame that is so much larger on each side.
        flip: mirror half of the images, left to right.
        max_brightness: up to so much is added to all pixels of a training image, or taken away.
        contrast: least and largest factor by which each channel's differences to its mean grow.
        light: where both are changed. `standardised`: in what the network has standardised, in units of its
            standard deviation, and nothing is clamped (Sec. 5, Hinton et al. 2018); of a network that does
            not, in the pixels. `pixels`: before that, in the pixels, clamped to 0 to 1, as earlier versions
            did it: of which standardising leaves little.
        validation_images: taken from the training set by a seeded permutation, never trained on. 0 trains on
            all: nothing is selected then, and the last weights are the run's result.
        held_out: what the validation images are taken from. `images`: any of the training set. `toys`, of
            `smallnorb` and `toys`: one toy of each category, of which nothing is trained on, as nothing is of
            those that are measured on; a fifth of the training set.
        training_images: no more than so many of the others are trained on; None takes all.
        epoch_images: an epoch shows so many, which fewer training images are repeated to; None: each once.
        blank_share: of the training images, shown blank with no class present (0 in the paper). A network
            that has never seen an empty image may take it for one of its classes with confidence.
        familiar: of `smallnorb` and `toys`; only a third of the azimuths, or of the elevations, is trained on
            (Sec. 5.1, Hinton et al. 2018) and the others are measured on. Because the paper stops networks
            when they are as good as each other under familiar viewpoints of the test set's toys, it is these
            that the `validation_images` are taken from; nothing is held out of the training set then.
    """

    name: Literal[
        "mnist",
        "drawn",
        "multimnist",
        "shifted-mnist",
        "fashion-mnist",
        "cifar10",
        "cifar10-jpeg",
        "svhn",
        "smallnorb",
        "toys",
        "images",
    ] = "mnist"
    folder: str | None = None
    folder_digest: str | None = None
    class_names: tuple[str, ...] = ()
    resize_pixels: int | None = Field(default=None, ge=1)
    crop_pixels: int | None = Field(default=None, ge=1)
    max_shift_pixels: int = Field(default=2, ge=0, le=16)
    flip: bool = False
    max_brightness: float = Field(default=0.0, ge=0, le=1)
    contrast: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (1.0, 1.0)
    light: Literal["pixels", "standardised"] = "pixels"
    validation_images: int = Field(default=5000, ge=0)
    held_out: Literal["images", "toys"] = "images"
    training_images: int | None = Field(default=None, ge=1)
    epoch_images: int | None = Field(default=None, ge=1)
    blank_share: float = Field(default=0.0, ge=0, lt=1)
    familiar: Literal["azimuth", "elevation"] | None = None

    @property
    def objects_per_image(self) -> int:
        """How many objects an image shows, of as many classes."""
        return 2 if self.name == "multimnist" else 1

    @model_validator(mode="after")
    def _refuse_what_would_have_no_effect(self) -> Self:
        unused = NO_EFFECT.get(self.name, ())
        asked_for = [option for option in unused if getattr(self, option) not in (None, 0, (1, 1))]
        if asked_for:
            raise ValueError(f"{', '.join(asked_for)}: {self.name} knows no such change; leave it out")
        tells_how = self.name in ("smallnorb", "toys")
        if self.familiar and not tells_how:
            raise ValueError(f"familiar: {self.name} does not say from where its pictures were taken")
        if self.held_out == "toys" and not tells_how:
            raise ValueError(f"held_out: {self.name} does not say which toy its pictures show")
        return self


@dataclass(frozen=True, config=_STRICT)
class OptimiserConfig:
    """Adam with TensorFlow's defaults and an exponentially decaying rate.

    The rate at step t is max(learning_rate * decay_rate ** (t / decay_steps), min_learning_rate). A run of
    few epochs ends better when it also falls linearly to 0 over the last `cooldown_epochs` (0 in the paper).
    With a `weight_average` above 0 what is measured and exported is an exponential moving average of the
    weights, of which each step keeps this share (0.999, say); 0 takes the weights themselves, as the paper.
    With a `stop_at_error_percent` the run ends before the last epoch: at the first one after which the
    validation error is at most so much; with `patience_epochs`, after so many epochs that did not improve
    validation: by a lower error or, while there are errors, a lower loss. `weight_decay` times half the
    squared weights is part of the loss.
    """

    batch_size: int = Field(default=128, ge=1)
    epochs: int = Field(default=300, ge=1)
    learning_rate: float = Field(default=0.001, gt=0)
    decay_rate: float = Field(default=0.96, gt=0, le=1)
    decay_steps: int = Field(default=2000, ge=1)
    min_learning_rate: float = Field(default=1e-6, ge=0)
    cooldown_epochs: int = Field(default=0, ge=0)
    weight_average: float = Field(default=0.0, ge=0, lt=1)
    stop_at_error_percent: float | None = Field(default=None, ge=0, le=100)
    patience_epochs: int | None = Field(default=None, ge=1)
    weight_decay: float = Field(default=0.0, ge=0)


@dataclass(frozen=True, config=_STRICT)
class RunConfig:
    """All that determines a training run, saved with its checkpoint.

    Attributes:
        preset: where the values come from.
        seed: of the weights, the order of the images and their shifts.
        started_from: the run or bundle whose weights this one began with, and how they came about; None if
            random.
    """

    preset: str = "mnist"
    seed: int = Field(default=0, ge=0, lt=2**63)
    model: ModelConfig = field(default_factory=CapsNetConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    started_from: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _refuse_a_loss_for_one_object_of_several(self) -> Self:
        loss, objects = self.loss.classification, self.data.objects_per_image
        if loss != "margin" and objects > 1:
            raise ValueError(
                f"loss.classification: {loss} is for images of one object, {self.data.name} shows {objects}; "
                'take "margin"'
            )
        return self

    @model_validator(mode="after")
    def _refuse_a_stop_that_nothing_measures(self) -> Self:
        for name in ("stop_at_error_percent", "patience_epochs"):
            if getattr(self.optimiser, name) is not None and not self.data.validation_images:
                raise ValueError(
                    f"optimiser.{name}: there is no validation error, data.validation_images is 0"
                )
        return self

    @model_validator(mode="after")
    def _refuse_shares_of_nothing(self) -> Self:
        if self.loss.classification == "cross-entropy" and self.data.blank_share:
            raise ValueError("data.blank_share: of an image without an object there is no cross-entropy")
        return self


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
        near = get_close_matches(name, presets(), n=1)
        meant = f"did you mean {near[0]}? There" if near else "there"
        raise ValueError(f"no preset {name!r}; {meant} are {', '.join(presets())}")
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
        faults = "; ".join(f"{_place(e['loc'])}: {e['msg']}" for e in error.errors())
        raise ValueError(f"configuration: {faults}") from None


def _place(location: tuple[int | str, ...]) -> str:
    """Where in the nested dictionaries a fault is; pydantic adds the architecture to a model's."""
    key, *rest = location or ("as a whole",)
    return ".".join(map(str, (key, *(rest[1:] if key == "model" and rest else rest))))


def differences(config: RunConfig) -> dict[str, Any]:
    """As `to_dict`, without what has its default value: it stays the same when options are added."""
    plain: dict[str, Any] = _ADAPTER.dump_python(config, mode="json", exclude_defaults=True)
    return plain


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain dictionaries, the inverse of `from_dict`."""
    plain: dict[str, Any] = _ADAPTER.dump_python(config, mode="json")
    return plain
