"""Batches of a data set's images: random ones to train on, fixed ones to measure on."""

# N images, B batch, K objects per image, C channels, H and W height and width, J classes

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training.config import DataConfig
from training.data.images import Images
from training.data.seeding import ALL, RandomChoices
from training.data.synthetic.letters import draw_letters
from training.data.synthetic.scribbles import draw_scribbles
from training.data.transforms import affnist_style
from training.data.transforms.augment import (
    center_crop,
    clamped_brightness,
    clamped_contrast,
    per_image,
    random_brightness_contrast,
    random_crop,
    random_flip,
    random_shift,
    resize,
)
from training.data.transforms.multimnist import PairMaker, Pairs
from training.data.transforms.warp import random_warp

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
            images = torch.where(per_image(is_scribble), some, images)
        if config.warp:
            images = random_warp(images, config.warp, choices, config.spec.repeat_edges)
        images = random_shift(images, config.max_shift_pixels, choices, config.spec.repeat_edges)
        made = Batch.of(to_pixels(images), F.one_hot(batch.labels, self.classes).float())
        if is_scribble is not None:
            made = made.without_objects(is_scribble)
        is_blank = self._are_replaced(config.blank_fraction, choices)
        if is_blank is not None:
            made = replace(made.without_objects(is_blank), pixels=made.pixels * ~per_image(is_blank))
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


def to_pixels(images: Tensor) -> Tensor:
    """uint8 0-255 to float32 0-1."""
    return images.float() / 255
