"""Which images a network is trained on."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from training.config.strict import MAX_COUNT, STRICT, Count
from training.data.dataset_spec import DatasetSpec
from training.data.datasets import DATASETS, listed, trainable


def _refuse_the_wrong_order(factors: tuple[float, float]) -> tuple[float, float]:
    if factors[0] > factors[1]:
        raise ValueError(f"the smallest factor comes first, got {factors[0]:g} and {factors[1]:g}")
    return factors


Factor = Annotated[float, Field(gt=0)]
Factors = Annotated[tuple[Factor, Factor], AfterValidator(_refuse_the_wrong_order)]


@dataclass(frozen=True, config=STRICT)
class WarpConfig:
    """How far training images are bent, each in its own way, see `training/data/transforms/warp.py`.

    Attributes:
        rotation_degrees: largest rotation to either side.
        scales: smallest and largest factor; each axis has its own.
        shear: largest shift of a point one pixel further down, in pixels to either side.
        elastic_pixels: standard deviation of an elastic displacement at the 5x5 points where it is drawn,
            pixels; between them it is about a fifth less, on average.
        thickness: how far, at most, strokes are on their way to being a pixel wider or narrower on both
            sides.
    """

    rotation_degrees: float = Field(default=0.0, ge=0, le=180)
    scales: Factors = (1.0, 1.0)
    shear: float = Field(default=0.0, ge=0, le=1)
    elastic_pixels: float = Field(default=0.0, ge=0, le=16)
    thickness: float = Field(default=0.0, ge=0, le=1)


@dataclass(frozen=True, config=STRICT)
class DataConfig:
    """Which images, how they are prepared and augmented, and how many are held out.

    Attributes:
        name: of the data set, see `training/data/datasets.py`.
        folder: for `images`: holds one folder of pictures per class.
        folder_digest: for `images`: digest of the names of all files at the start of the run.
        class_names: for `images`: the classes, in the order of the labels.
        resize_pixels: height and width that images are resized to; None leaves them.
        crop_pixels: height and width of the crop, anywhere in training and central in evaluation; None takes
            the whole image.
        max_shift_pixels: largest random shift per axis, padded with zeros (for `images`, with the edge
            repeated). In a pair each digit is shifted, in a frame that is larger by this on each side.
        flip: mirror half of the images, left to right.
        warp: how far images are turned, scaled, sheared and stretched; None leaves them as they are.
        max_brightness: largest amount that is added to or taken from all pixels of a training image.
        contrast: smallest and largest factor of each channel's differences to its mean.
        light: where brightness and contrast are changed. `standardized`: after the network has standardized
            an image, in standard deviations and without clamping (Sec. 5, Hinton et al. 2018). `pixels`:
            before that, clamped to 0 to 1, as earlier versions did; standardizing undoes most of it.
        validation_images: held out of the training set as `held_out` says; with `familiar`, of the test set.
            With 0 no checkpoint is selected: the last weights are the run's result.
        held_out: what the validation images are chosen from. `images`: the whole training set. `each-class`:
            each class, the same share of it, as for new runs on the user's own pictures. `toys`, for
            `smallnorb` and `toys`: one toy of each category, a fifth of the training set, no image of which
            is trained on.
        training_images: at most so many of the others are trained on; None takes all.
        epoch_images: images in an epoch; fewer training images are repeated. None shows each once.
        blank_fraction: of the training images are shown blank, with no class present (0 in the paper). A
            network that was never shown an empty image may classify one with confidence.
        scribble_fraction: of the training images that are not blank are replaced by scribbles, noise and
            letters, with no class present (0 in the paper), so that a network learns what is none of its
            classes.
        familiar: for `smallnorb` and `toys`: train on a third of the azimuths, or of the elevations, and
            measure on the others (Sec. 5.1, Hinton et al. 2018). The paper stops networks when they are
            equally good on familiar viewpoints of the test set's toys, so the `validation_images` are those;
            nothing is held out of the training set, whatever `held_out` says.
    """

    name: str = "mnist"
    folder: str | None = None
    folder_digest: str | None = None
    class_names: tuple[str, ...] = ()
    resize_pixels: Count | None = None
    crop_pixels: Count | None = None
    max_shift_pixels: int = Field(default=2, ge=0, le=16)
    flip: bool = False
    warp: WarpConfig | None = None
    max_brightness: float = Field(default=0.0, ge=0, le=1)
    contrast: Factors = (1.0, 1.0)
    light: Literal["pixels", "standardized"] = "pixels"
    validation_images: int = Field(default=5000, ge=0, le=MAX_COUNT)
    held_out: Literal["images", "each-class", "toys"] = "images"
    training_images: Count | None = None
    epoch_images: Count | None = None
    blank_fraction: float = Field(default=0.0, ge=0, lt=1)
    scribble_fraction: float = Field(default=0.0, ge=0, lt=1)
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
