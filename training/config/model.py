"""Architectures of the networks."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from export.contract.architecture import PRIMARY_STRIDE
from training.config.strict import MAX_COUNT, STRICT, Count

MAX_ITERATIONS = 100  # of routing; each is unrolled in the exported graph, and a few are enough


@dataclass(frozen=True, config=STRICT)
class StemConvolution:
    """A convolution with ReLU and without padding, before a CapsNet's Conv1.

    Attributes:
        channels: kernels.
        kernel: height and width of each, pixels.
        stride: along both axes.
    """

    channels: Count
    kernel: Count
    stride: Count = 1


@dataclass(frozen=True, config=STRICT)
class CapsNetConfig:
    """Architecture of a CapsNet (Sec. 4, Sabour et al. 2017); the defaults are the paper's MNIST network.

    Attributes:
        architecture: which of the networks this is.
        image_size: height and width of the input, pixels.
        image_channels: 1 for gray, 3 for RGB, 2 for a stereo pair.
        standardize_per_image: bring each image to zero mean and unit variance before the first convolution.
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
        official_initialization: begin with the official code's weights and biases, not with PyTorch's.
        decoder_hidden: widths of the decoder's hidden layers; empty means no decoder.
    """

    architecture: Literal["capsnet"] = "capsnet"
    image_size: Count = 28
    image_channels: Count = 1
    standardize_per_image: bool = False
    stem: tuple[StemConvolution, ...] = ()
    conv_channels: Count = 256
    kernel: Count = 9
    primary_types: Count = 32
    primary_dim: Count = 8
    classes: int = Field(default=10, ge=2, le=MAX_COUNT)
    class_dim: Count = 16
    routing_iterations: int = Field(default=3, ge=1, le=MAX_ITERATIONS)
    learned_priors: bool = False
    none_of_the_above: bool = False
    capsule_bias: bool = False
    primary_coupling: bool = False
    official_initialization: bool = False
    decoder_hidden: tuple[Count, ...] = (512, 1024)

    def __post_init__(self) -> None:
        min_size = 1  # pixels along a side that one primary capsule sees
        for kernel, stride in reversed(self._convolutions()):
            min_size = (min_size - 1) * stride + kernel
        if self.image_size < min_size:
            raise ValueError(f"image_size must be at least {min_size} pixels, got {self.image_size}")

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


@dataclass(frozen=True, config=STRICT)
class MatrixCapsNetConfig:
    """Architecture of matrix capsules (Sec. 4, Hinton et al. 2018), by default the paper's for smallNORB.

    Attributes:
        architecture: which of the networks this is.
        image_size: height and width of the input, pixels.
        image_channels: 1 for gray, 3 for RGB, 2 for a stereo pair.
        standardize_per_image: bring each image to zero mean and unit variance before the convolution.
        conv_channels: A, kernels of the convolution.
        primary_types: B, types of primary capsules.
        conv_caps_types: C and D, types of the two convolutional capsule layers.
        classes: class capsules.
        routing_iterations: of EM routing.
        coordinate_addition: add their places to the votes for the class capsules.
        vector_poses: poses are vectors of 16, transformed by 16x16 matrices, not 4x4 by 4x4 (Table 1).
        mixing_proportions: activations are shares of what is assigned to the parents, not Eq. 2 (Sec. 5);
            they need two iterations.
        official_routing: as the official code has it where that is not the paper: a tenth of a mean stays
            from one iteration to the next, costs beside beta_a count double, other first values of matrices
            and betas, coordinates are added to the first two elements of a vote. Not taken over: its
            convolutional capsules assign a child anew to the positions of each parent type apart, J times as
            much in all as in Procedure 1, and at first 1 / J at every position; its coordinates are
            (pixel - 16) / 100.
        inverse_temperature: lambda of Eq. 2 in the last of very many iterations (official code).
        class_temperature_fraction: lambda of the class capsules, in units of the other layers' lambda: many
            more children vote for each of them (official code).
        activation_logit_sd: standard deviation over images that the logits of the convolutional capsules'
            activations get from a calibration on the first batch, which sets lambda of each layer and what
            its costs are held against; the class capsules keep their lambda. None: no calibration.
        calibration_momentum: how far each batch of training moves what the first one has set, towards logits
            of that deviation and, for each type, of mean 0; their `beta_a` is then not learned. With three
            iterations the first layer otherwise learns to be always active. 0: the first batch alone counts.
        density_exponent: power of the Gaussian's density in the E-step: the inverse temperature of
            deterministic annealing EM (Ueda and Nakano 1998). Below 1, assignments are softer and each
            iteration drives types apart less that have nearly the same votes. The paper: 1.
        matrix_noise: standard deviation of the noise that is added to the identity for the first matrices.
        decoder_hidden: widths of the hidden layers of a decoder of the class capsules' poses; empty means
            none, as in the paper.
    """

    architecture: Literal["matrix-capsnet"]
    image_size: int = Field(default=32, ge=17, le=MAX_COUNT)
    image_channels: Count = 2
    standardize_per_image: bool = True
    conv_channels: Count = 32
    primary_types: Count = 32
    conv_caps_types: tuple[Count, Count] = (32, 32)
    classes: int = Field(default=5, ge=2, le=MAX_COUNT)
    routing_iterations: int = Field(default=3, ge=1, le=MAX_ITERATIONS)
    coordinate_addition: bool = True
    vector_poses: bool = False
    mixing_proportions: bool = False
    official_routing: bool = False
    inverse_temperature: float = Field(default=0.01, gt=0)
    class_temperature_fraction: float = Field(default=0.25, gt=0)
    activation_logit_sd: float | None = Field(default=None, gt=0)
    calibration_momentum: float = Field(default=0.0, ge=0, lt=1)
    density_exponent: float = Field(default=1.0, gt=0)
    matrix_noise: float = Field(default=0.03, ge=0)
    decoder_hidden: tuple[Count, ...] = ()

    def __post_init__(self) -> None:
        if self.official_routing and self.mixing_proportions:
            raise ValueError("mixing_proportions: official_routing has activations by Eq. 2")
        if self.mixing_proportions and self.routing_iterations == 1:
            raise ValueError("mixing_proportions: in one iteration of routing all are equal; take 2 or more")
        if self.calibration_momentum and self.activation_logit_sd is None:
            raise ValueError("calibration_momentum: there is no activation_logit_sd to move towards")


@dataclass(frozen=True, config=STRICT)
class Block:
    """A convolution with ReLU that keeps the size of its maps, then max-pooling of 2x2 or none.

    Attributes:
        channels: kernels.
        kernel: height and width of each, pixels; odd.
        pooled: whether the maps are halved after it.
    """

    channels: Count
    kernel: Count
    pooled: bool = False

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")


@dataclass(frozen=True, config=STRICT)
class CnnConfig:
    """Architecture of a convolutional network to compare with.

    Those of Sec. 5, 5.2 and 6.2, Sabour et al. 2017, and of Sec. 5, Hinton et al. 2018.

    Attributes:
        architecture: which of the networks this is.
        image_size: height and width of the input, pixels.
        image_channels: 1 for gray, 3 for RGB, 2 for a stereo pair.
        standardize_per_image: bring each image to zero mean and unit variance before the first convolution.
        classes: logits.
        blocks: the convolutions, in order.
        hidden: widths of the fully connected layers before the logits.
        dropout: share of the last hidden layer that is left out in training.
        exclusive: an image shows exactly one class: probabilities are a softmax, else a sigmoid per class.
    """

    architecture: Literal["cnn"]
    image_size: Count = 28
    image_channels: Count = 1
    standardize_per_image: bool = False
    classes: int = Field(default=10, ge=2, le=MAX_COUNT)
    blocks: tuple[Block, ...] = Field(min_length=1, kw_only=True)
    hidden: tuple[Count, ...] = ()
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
