"""Batches of a data set's images: random ones to train on, fixed ones to measure on."""

# N images, B batch, K objects per image, C channels, H and W height and width, J classes

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training.config import DataConfig, RunConfig
from training.data.datasets import load_split
from training.data.images import Images, hold_out, hold_out_of_each_class, hold_out_toys
from training.data.readers.folder import read_folder, refuse_changed
from training.data.readers.smallnorb import ToySplit
from training.data.seeding import ALL, RandomChoices
from training.data.synthetic.letters import draw_letters
from training.data.synthetic.scribbles import draw_scribbles
from training.data.transforms import affnist_style
from training.data.transforms.augment import (
    center_crop,
    clamped_brightness,
    clamped_contrast,
    random_brightness_contrast,
    random_crop,
    random_flip,
    random_shift,
    resize,
)
from training.data.transforms.multimnist import PairMaker, Pairs
from training.data.transforms.warp import random_warp
from training.data.viewpoints import are_familiar

SCRIBBLES, LETTERS = 2000, 1000  # different ones, each of which is bent and shifted anew
SCRIBBLE_SEED = 0


@dataclass(frozen=True)
class Batch:
    """Images, and what a network is trained to make of them; all float32.

    Attributes:
        pixels: the images, [B, C, H, W], 0 to 1.
        targets: 1 where a class is in the image and 0 elsewhere, [B, J].
        masks: 1 at the class of each object, [B, K, J]: the capsule to reconstruct it from.
        objects: each object alone, the target of its reconstruction, [B, K, C, H, W], 0 to 1; in its
            original brightness and contrast.
        brightness_contrast: changes of brightness and contrast that the network applies itself, [B, 2], see
            `training.models.standardize.adjust_brightness_contrast`; None for no change.
    """

    pixels: Tensor
    targets: Tensor
    masks: Tensor
    objects: Tensor
    brightness_contrast: Tensor | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    @staticmethod
    def of(pixels: Tensor, targets: Tensor) -> "Batch":
        """Images that show one object each, or none."""
        return Batch(pixels, targets, targets.unsqueeze(1), pixels.unsqueeze(1))

    def without_objects(self, some: Tensor) -> "Batch":
        """The same images, some of which, bool [B], show no object: nothing is to be drawn of them."""
        kept = (~some).float()
        return replace(
            self,
            targets=self.targets * kept[:, None],
            masks=self.masks * kept[:, None, None],
            objects=self.objects * kept[:, None, None, None, None],
        )

    def to(self, device: torch.device) -> "Batch":
        """The same on the device."""
        return self if self.pixels.device == device else self._each(lambda tensor: tensor.to(device))

    def __getitem__(self, some: slice) -> "Batch":
        return self._each(lambda tensor: tensor[some])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        brightness_contrast = self.brightness_contrast
        if brightness_contrast is not None:
            brightness_contrast = change(brightness_contrast)
        return Batch(
            change(self.pixels),
            change(self.targets),
            change(self.masks),
            change(self.objects),
            brightness_contrast,
        )


class SingleObjects:
    """Images that show one object each."""

    def __init__(self, config: DataConfig, classes: int, images: Images):
        """Prepare images as the configuration says.

        Args:
            config: of the data set that they are of.
            classes: how many the data set has.
            images: on the device where batches are made.
        """
        self.config, self.classes = config, classes
        size = config.resize_pixels
        self.images = Images(resize(images.pixels, size), images.labels) if size else images

    @property
    def size(self) -> int:
        """Height and width of the images before any crop, pixels."""
        return self.images.pixels.shape[-1]

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> "SingleObjects":
        """The same images on the device."""
        return SingleObjects(self.config, self.classes, self.images.to(device))

    def random(self, index: Tensor, generator: torch.Generator, part: slice = ALL) -> Batch:
        """Augmented images to learn from.

        Args:
            index: which images, int64 [N], on their device.
            generator: source of the augmentation, on their device.
            part: which of these are wanted; they are those of the whole batch.
        """
        config, batch = self.config, self.images[index[part]]
        images, choices = batch.pixels, RandomChoices(generator, len(index), part)
        if config.spec.composition == "shifted":
            images = affnist_style.shifted(images, choices)
        if config.crop_pixels:
            images = random_crop(images, config.crop_pixels, choices)
        if config.flip:
            images = random_flip(images, choices)
        is_scribble = self._are_replaced(config.scribble_fraction, choices)
        if is_scribble is not None:
            some = self._scribbles[choices.integers(len(self._scribbles))]
            images = torch.where(_per_image(is_scribble), some, images)
        if config.warp:
            images = random_warp(images, config.warp, choices, config.spec.repeat_edges)
        images = random_shift(images, config.max_shift_pixels, choices, config.spec.repeat_edges)
        made = Batch.of(to_pixels(images), F.one_hot(batch.labels, self.classes).float())
        if is_scribble is not None:
            made = made.without_objects(is_scribble)
        is_blank = self._are_replaced(config.blank_fraction, choices)
        if is_blank is not None:
            made = replace(made.without_objects(is_blank), pixels=made.pixels * ~_per_image(is_blank))
        return self._with_random_changes(made, choices)

    @cached_property
    def _scribbles(self) -> Tensor:
        """What takes the place of some images, uint8 [S, C, H, W]."""
        size, channels = self.config.crop_pixels or self.size, self.images.pixels.shape[1]
        rng = np.random.default_rng(SCRIBBLE_SEED)
        drawn = [draw_scribbles(SCRIBBLES, rng, size), draw_letters(LETTERS, rng, size)]
        found = torch.from_numpy(np.concatenate(drawn))[:, None].expand(-1, channels, -1, -1)
        return found.to(self.images.pixels.device)

    @staticmethod
    def _are_replaced(fraction: float, choices: RandomChoices) -> Tensor | None:
        """Which images show no object after all, bool [B]; None if none can."""
        return choices.uniform() < fraction if fraction else None

    def _with_random_changes(self, batch: Batch, choices: RandomChoices) -> Batch:
        """The same images to look at, with other brightness and contrast; to draw they stay what they are."""
        config = self.config
        if not config.max_brightness and config.contrast == (1, 1):
            return batch
        if config.light == "standardized":
            changes = random_brightness_contrast(config.max_brightness, config.contrast, choices)
            return replace(batch, brightness_contrast=changes)
        pixels = clamped_brightness(batch.pixels, config.max_brightness, choices)
        return replace(batch, pixels=clamped_contrast(pixels, *config.contrast, choices))

    def fixed(self, batch: int, versions: int = 1) -> Iterator[Batch]:
        """Every image, the same each time.

        Args:
            batch: images at a time; the last may be fewer.
            versions: how often each is shown, where it is placed anew each time (`shifted`).
        """
        for images in self._fixed_images(batch, versions):
            yield Batch.of(to_pixels(images.pixels), F.one_hot(images.labels, self.classes).float())

    def _fixed_images(self, batch: int, versions: int) -> Iterator[Images]:
        if self.config.spec.composition == "shifted":
            yield from affnist_style.shifted_set(self.images, batch, versions=versions)
            return
        for start in range(0, len(self.images), batch):
            images = self.images[start : start + batch]
            crop = self.config.crop_pixels
            yield Images(center_crop(images.pixels, crop), images.labels) if crop else images


class OverlaidObjects:
    """MultiMNIST: images of two objects of different classes, laid over each other (Sec. 6)."""

    def __init__(self, config: DataConfig, classes: int, images: Images):
        """Prepare to lay images over each other; the arguments are those of `SingleObjects`."""
        self.config, self.classes, self.images = config, classes, images
        self._maker = PairMaker(images, config.max_shift_pixels)

    @property
    def size(self) -> int:
        """Height and width of the images, pixels."""
        return self._maker.image_size

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> "OverlaidObjects":
        """The same images on the device."""
        return OverlaidObjects(self.config, self.classes, self.images.to(device))

    def random(self, index: Tensor, generator: torch.Generator, part: slice = ALL) -> Batch:
        """Each image with another one over it; the arguments are those of `SingleObjects.random`."""
        return self._batch(self._maker.random(index, generator, part))

    def fixed(self, batch: int, versions: int = 1) -> Iterator[Batch]:
        """Every image with `versions` others, the same each time; 1,000 in the paper's test set."""
        for pairs in self._maker.fixed(batch, partners=versions):
            yield self._batch(pairs)

    def _batch(self, pairs: Pairs) -> Batch:
        targets, masks = pairs.targets(self.classes), pairs.masks(self.classes)
        return Batch(to_pixels(pairs.pixels), targets, masks, to_pixels(pairs.objects))


Batches = SingleObjects | OverlaidObjects


def make_batches(config: DataConfig, classes: int, images: Images) -> Batches:
    """Images as the configuration shows them."""
    kind = OverlaidObjects if config.spec.composition == "pairs" else SingleObjects
    return kind(config, classes, images)


def load_images(config: RunConfig, split: Literal["train", "test"], root: Path) -> Images:
    """The images of a data set, or of the user's own folder, as they are read.

    For a run with familiar viewpoints, `train` is the training set's images from these, and `test` the test
    set's images from all others.

    Raises:
        FileNotFoundError: a file is missing; names it and the command that downloads it.
        ValueError: the run is for the user's own pictures but names no folder, or the folder has changed
            since the run was started.
    """
    data, model = config.data, config.model
    if data.familiar is not None:
        return _from_viewpoints(data, split, root, familiar=split == "train")
    if data.spec.read is not None:
        return Images.of(load_split(data.name, split, root))
    if data.folder is None or data.folder_digest is None:  # a preset may name a folder, but reads none
        raise ValueError(f"the preset {config.preset} is for your own pictures: add --images FOLDER")
    folder, size, channels = Path(data.folder), model.image_size, model.image_channels
    refuse_changed(folder, data.folder_digest)
    return Images.of(read_folder(folder, split, data.class_names, size, channels))


def _from_viewpoints(data: DataConfig, split: Literal["train", "test"], root: Path, familiar: bool) -> Images:
    """What a split shows from familiar viewpoints, or from all others."""
    assert data.familiar is not None
    found = load_split(data.name, split, root)
    return Images.of(found)[torch.from_numpy(are_familiar(found, data.familiar) == familiar)]


def training_batches(config: RunConfig, root: Path) -> tuple[Batches, Batches | None]:
    """What a run is trained on, and what it is validated on; None if `validation_images` is 0.

    Args:
        config: of the run.
        root: holds one folder per data set.

    Raises:
        FileNotFoundError, ValueError: as `load_images`.
        ValueError: there are not as many images to validate on, `epoch_images` is smaller than the training
            set, or the network does not take such images.
    """
    train, validation = _parted(config, root)
    train = _repeated(train[: config.data.training_images], config.data.epoch_images)
    classes = config.model.classes
    shown = make_batches(config.data, classes, train)
    _refuse_what_the_network_does_not_take(config, shown)
    return shown, make_batches(config.data, classes, validation) if len(validation) else None


def _refuse_what_the_network_does_not_take(config: RunConfig, shown: Batches) -> None:
    model, data = config.model, config.data
    if len(data.labels) != model.classes:
        raise ValueError(
            f"model.classes: the network has {model.classes}, the data set {data.name} {len(data.labels)}"
        )
    if data.crop_pixels is not None and data.crop_pixels > shown.size:
        raise ValueError(
            f"data.crop_pixels: no crop of {data.crop_pixels} pixels fits into images of {shown.size}"
        )
    _, channels, size, _ = next(shown.fixed(1)).pixels.shape
    if channels != model.image_channels:
        raise ValueError(
            f"model.image_channels: the network takes {model.image_channels}, images of {data.name} have "
            f"{channels}"
        )
    if size != model.image_size:
        raise ValueError(
            f"model.image_size: the network takes {model.image_size} pixels, but is shown {size}; of [data], "
            "max_shift_pixels of pairs, resize_pixels and crop_pixels change the size"
        )


def _parted(config: RunConfig, root: Path) -> tuple[Images, Images]:
    """Images to train on, and others to validate on: see `held_out` and `familiar` of `DataConfig`."""
    data = config.data
    if data.familiar is not None:
        known = _from_viewpoints(data, "test", root, familiar=True)
        if data.validation_images > len(known):
            raise ValueError(
                f"validation_images is {data.validation_images}; there are {len(known)} familiar viewpoints"
            )
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(config.seed))
        return load_images(config, "train", root), known[order[: data.validation_images]]
    if data.held_out == "toys" and data.validation_images:
        split = load_split(data.name, "train", root)
        assert isinstance(split, ToySplit)  # a configuration with anything else is refused
        return hold_out_toys(split, data.validation_images, config.seed)
    images = load_images(config, "train", root)
    if data.held_out == "each-class" and data.validation_images:
        return hold_out_of_each_class(images, data.validation_images, config.seed)
    return hold_out(images, data.validation_images, config.seed)


def _repeated(images: Images, epoch_images: int | None) -> Images:
    """As many images as an epoch has, each equally often or once more."""
    if epoch_images is None:
        return images
    if epoch_images < len(images):
        raise ValueError(f"epoch_images is {epoch_images}; expected at least the {len(images)} trained on")
    return images[torch.arange(epoch_images) % len(images)]


def evaluation_batches(config: RunConfig, root: Path) -> Batches:
    """What a run is measured on at the end; the arguments are those of `training_batches`."""
    return make_batches(config.data, config.model.classes, load_images(config, "test", root))


def _per_image(values: Tensor) -> Tensor:
    """[B] to [B, 1, 1, 1]."""
    return values[:, None, None, None]


def to_pixels(images: Tensor) -> Tensor:
    """uint8 0-255 to float32 0-1."""
    return images.float() / 255
