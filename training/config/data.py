"""Which images a network is trained on."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from training.config.strict import STRICT
from training.data.dataset_spec import DatasetSpec
from training.data.datasets import DATASETS, listed, trainable


@dataclass(frozen=True, config=STRICT)
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
        light: where both are changed. `standardized`: in what the network has standardized, in units of its
            standard deviation, and nothing is clamped (Sec. 5, Hinton et al. 2018); of a network that does
            not, in the pixels. `pixels`: before that, in the pixels, clamped to 0 to 1, as earlier versions
            did it: of which standardizing leaves little.
        validation_images: taken from the training set by a seeded permutation, never trained on. 0 trains on
            all: nothing is selected then, and the last weights are the run's result.
        held_out: what the validation images are taken from. `images`: any of the training set. `toys`, of
            `smallnorb` and `toys`: one toy of each category, of which nothing is trained on, as nothing is of
            those that are measured on; a fifth of the training set.
        training_images: no more than so many of the others are trained on; None takes all.
        epoch_images: an epoch shows so many, which fewer training images are repeated to; None: each once.
        blank_fraction: of the training images, shown blank with no class present (0 in the paper). A network
            that has never seen an empty image may take it for one of its classes with confidence.
        familiar: of `smallnorb` and `toys`; only a third of the azimuths, or of the elevations, is trained on
            (Sec. 5.1, Hinton et al. 2018) and the others are measured on. Because the paper stops networks
            when they are as good as each other under familiar viewpoints of the test set's toys, it is these
            that the `validation_images` are taken from; nothing is held out of the training set then.
    """

    name: str = "mnist"
    folder: str | None = None
    folder_digest: str | None = None
    class_names: tuple[str, ...] = ()
    resize_pixels: int | None = Field(default=None, ge=1)
    crop_pixels: int | None = Field(default=None, ge=1)
    max_shift_pixels: int = Field(default=2, ge=0, le=16)
    flip: bool = False
    max_brightness: float = Field(default=0.0, ge=0, le=1)
    contrast: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = (1.0, 1.0)
    light: Literal["pixels", "standardized"] = "pixels"
    validation_images: int = Field(default=5000, ge=0)
    held_out: Literal["images", "toys"] = "images"
    training_images: int | None = Field(default=None, ge=1)
    epoch_images: int | None = Field(default=None, ge=1)
    blank_fraction: float = Field(default=0.0, ge=0, lt=1)
    familiar: Literal["azimuth", "elevation"] | None = None

    @property
    def spec(self) -> DatasetSpec:
        """What the data set is."""
        return DATASETS[self.name]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the labels."""
        return self.class_names or self.spec.class_names

    @field_validator("name")
    @classmethod
    def _refuse_what_cannot_be_trained_on(cls, name: str) -> str:
        if name not in trainable():
            raise ValueError(f"no data set {name!r} to train on; there are {listed(trainable())}")
        return name

    @model_validator(mode="after")
    def _refuse_what_would_have_no_effect(self) -> Self:
        spec = self.spec
        unused = [option for option in spec.without_effect if getattr(self, option) not in (None, 0, (1, 1))]
        if unused:
            raise ValueError(f"{', '.join(unused)}: has no effect on {self.name}; leave it out")
        if self.familiar and not spec.tells_viewpoint:
            raise ValueError(f"familiar: {self.name} does not say from where its pictures were taken")
        if self.held_out == "toys" and not spec.tells_viewpoint:
            raise ValueError(f"held_out: {self.name} does not say which toy its pictures show")
        return self
