"""MultiMNIST: two digits of different classes laid over each other (Sec. 6, Sabour et al. 2017).

Nothing is stored: pairs are made in batches, on the digits' device. For training they are random at every
step; the test set is the same each time.
"""

# N images, B batch, C channels, H and W height and width, J classes

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.images import Images
from training.data.seeding import ALL, RandomChoices, generator_for
from training.data.transforms.placement import place, random_corners

SET_SEED = 0  # of partners and shifts of a fixed set
PAPERS_PARTNERS = 1000  # of each digit: 10 million test images


@dataclass(frozen=True)
class Pairs:
    """Images of two objects each.

    Attributes:
        pixels: both objects added and clipped at 255, uint8 [B, C, H, W].
        labels: the two classes, which differ, int64 [B, 2].
        objects: each object alone, where it is in the image, uint8 [B, 2, C, H, W], 0-255; the targets of the
            two reconstructions.
    """

    pixels: Tensor
    labels: Tensor
    objects: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def masks(self, classes: int) -> Tensor:
        """1 at the class of each object and 0 elsewhere, float32 [B, 2, J]."""
        return F.one_hot(self.labels, classes).float()

    def targets(self, classes: int) -> Tensor:
        """1 at both classes and 0 elsewhere, float32 [B, J]."""
        return self.masks(classes).sum(dim=1)


class PairMaker:
    """Lays images of one set over others of the same set that are of another class."""

    def __init__(self, images: Images, max_shift: int):
        """Sort the images by class, so that a partner is found without trial and error.

        Args:
            images: a split of MNIST or of a set like it, square; pairs are made on the device where it lies.
            max_shift: both shifts of each image are uniform in -max_shift..max_shift pixels. The pairs are
                2 max_shift pixels larger than the images, so nothing is cut off.

        Raises:
            ValueError: no image of a second class.
        """
        self._counts = torch.bincount(images.labels)  # of each class
        if (self._counts > 0).sum() < 2:
            raise ValueError(f"a pair takes two classes; these {len(images)} images have fewer")
        self.images, self.max_shift = images, max_shift
        self.image_size = images.pixels.shape[2] + 2 * max_shift
        self._by_class = images.labels.argsort(stable=True)
        self._starts = self._counts.cumsum(0) - self._counts  # of each class in _by_class

    def random(self, first: Tensor, generator: torch.Generator, part: slice = ALL) -> Pairs:
        """Pairs for a training step; the paper's training set is 1,000 such for each digit.

        Args:
            first: index of one image of each pair, int64 [B], on the images' device.
            generator: source of partners and shifts, on the images' device.
            part: which of the pairs are wanted.

        Returns:
            These pairs; `labels` and `objects` begin with the image that `first` names.
        """
        return self._overlay(
            first[part], *self._draw(first[part], RandomChoices(generator, len(first), part))
        )

    def fixed(self, batch: int, partners: int = 1) -> Iterator[Pairs]:
        """Every image with a number of partners, the same ones each time: a test or validation set.

        Image i with its k-th partner is the pair with number k N + i, whatever the batch size; the first
        partner is the same whether there are more or not. Choices are made on the CPU, so the set is the
        same on every device.

        Args:
            batch: pairs at a time; the last of each N may be fewer.
            partners: of each image, 1,000 in the paper.
        """
        every = torch.arange(len(self.images), device=self.images.labels.device)
        for round_ in range(partners):
            second, corners = self._draw(every, RandomChoices(generator_for(SET_SEED, round_), len(every)))
            for start in range(0, len(every), batch):
                some = slice(start, start + batch)
                yield self._overlay(every[some], second[some], corners[:, some])

    def _draw(self, first: Tensor, choices: RandomChoices) -> tuple[Tensor, Tensor]:
        """Partners [B] and corners [2, B, 2], on the images' device."""
        # So much larger than any set that the remainder is uniform for all that can be told.
        drawn = choices.integers(2**62)
        corners = random_corners(choices, 2 * self.max_shift, objects=(2,))
        labels = self.images.labels[first]
        own_start, own_count = self._starts[labels], self._counts[labels]
        place_among_others = drawn.to(first.device) % (len(self.images) - own_count)
        skipped = torch.where(place_among_others >= own_start, own_count, 0)
        return self._by_class[place_among_others + skipped], corners.to(first.device)

    def _overlay(self, first: Tensor, second: Tensor, corners: Tensor) -> Pairs:
        """Two images [B] each, with corners [2, B, 2], to pairs."""
        index = torch.stack([first, second], dim=1)  # [B, 2]
        alone = self.images.pixels[index].flatten(0, 1)  # [2 B, C, H, W]
        objects = place(alone, corners.flatten(1), self.image_size).unflatten(0, (-1, 2))
        pixels = objects.sum(dim=1).clamp(max=255).to(objects.dtype)  # summed as int64
        return Pairs(pixels, self.images.labels[index], objects)
