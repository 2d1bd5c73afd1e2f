"""A network's architecture as its manifest states it: what faster graphs are made of, but the weights."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from export.contract.manifest import Architecture, Manifest

PRIMARY_STRIDE = 2  # of PrimaryCapsules' convolution (Sec. 4, Sabour et al. 2017); that of Conv1 is 1
SQUASH_EPSILON = 1e-7  # in the squash, below the root
# Of matrix capsules (Sec. 4, Hinton et al. 2018): the convolution, then the two convolutional capsule layers.
CONV_KERNEL, CONV_STRIDE = 5, 2
CAPSULE_KERNEL = 3
CAPSULE_STRIDES = (2, 1)
# Images that an encoder takes at once on a CPU. Votes of matrix capsules are large: with 32 at a
# time, the plain graph of matrix-capsnet-toys takes 1.3 GB and is slower than with 2; that of the paper's
# larger network takes 9 GB.
CPU_BATCH: dict[Architecture, int] = {"capsnet": 32, "matrix-capsnet": 2}
GPU_MATRIX_BATCH = 64  # matrix capsules on a GPU: the votes of 512 images would take gigabytes


class _Facts(BaseModel):
    """Immutable; a manifest states further parameters, which are not needed here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StemConvolution(_Facts):
    """A convolution before Conv1."""

    channels: PositiveInt
    kernel: PositiveInt
    stride: PositiveInt = 1


class CapsNetArchitecture(_Facts):
    """What the encoder of a CapsNet computes.

    Attributes:
        architecture: which one it is.
        image_size: height and width of the input, pixels.
        stem: convolutions before Conv1.
        kernel: height and width of the kernels of Conv1 and PrimaryCapsules.
        primary_dim: elements of a primary capsule's pose.
        classes: class capsules.
        class_dim: elements of a class capsule's pose.
        routing_iterations: of routing by agreement.
        learned_priors: the initial logits are weights, not 0.
        none_of_the_above: the softmax of routing has one more logit, always 0.
        capsule_bias: a bias is added to the class capsules before the squash.
    """

    architecture: Literal["capsnet"] = "capsnet"
    image_size: PositiveInt
    stem: tuple[StemConvolution, ...] = ()
    kernel: PositiveInt
    primary_dim: PositiveInt
    classes: PositiveInt
    class_dim: PositiveInt
    routing_iterations: PositiveInt
    learned_priors: bool = False
    none_of_the_above: bool = False
    capsule_bias: bool = False

    @property
    def strides(self) -> dict[str, int]:
        """The stride of each convolution by its module's path, in their order."""
        stem = {f"stem.{place}": layer.stride for place, layer in enumerate(self.stem)}
        return stem | {"conv1": 1, "primary_caps.conv": PRIMARY_STRIDE}

    @property
    def sizes(self) -> dict[str, int]:
        """Height and width of what each convolution reads, by its module's path."""
        kernels = [*(layer.kernel for layer in self.stem), self.kernel]
        sizes = [self.image_size]
        for kernel, stride in zip(kernels, self.strides.values(), strict=False):
            sizes.append((sizes[-1] - kernel) // stride + 1)
        return dict(zip(self.strides, sizes, strict=True))


class MatrixCapsNetArchitecture(_Facts):
    """What the encoder of matrix capsules computes; its graph tells the rest.

    Attributes:
        architecture: which one it is.
        routing_iterations: of EM routing.
    """

    architecture: Literal["matrix-capsnet"] = "matrix-capsnet"
    routing_iterations: PositiveInt


StatedArchitecture = Annotated[
    CapsNetArchitecture | MatrixCapsNetArchitecture, Field(discriminator="architecture")
]


def stated_architecture(manifest: Manifest) -> StatedArchitecture | None:
    """The architecture, if the manifest states what faster graphs are made of; else None."""
    if manifest.architecture == "capsnet":
        return capsnet_architecture(manifest)
    try:
        return MatrixCapsNetArchitecture.model_validate(manifest.parameters)
    except ValidationError:
        return None


def capsnet_architecture(manifest: Manifest) -> CapsNetArchitecture | None:
    """The architecture, if the manifest describes a CapsNet and states it in full; else None."""
    if manifest.architecture != "capsnet" or manifest.parameters.get("primary_coupling", False):
        return None
    try:
        return CapsNetArchitecture.model_validate(manifest.parameters)
    except ValidationError:
        return None
