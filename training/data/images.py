"""Images and labels as tensors."""

# N images, C channels, H and W height and width

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.data.readers.smallnorb import ToySplit
from training.data.split import Split


@dataclass(frozen=True)
class Images:
    """Images uint8 [N, C, H, W], 0-255, and labels int64 [N]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> "Images":
        return Images(self.pixels[index], self.labels[index])

    def to(self, device: torch.device) -> "Images":
        """The same images on the device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    @staticmethod
    def of(split: Split) -> "Images":
        """From images uint8 [N, H, W, C] and labels [N]."""
        channels_first = torch.from_numpy(split.images).permute(0, 3, 1, 2).contiguous()
        return Images(channels_first, torch.from_numpy(split.labels))


def hold_out(images: Images, count: int, seed: int) -> tuple[Images, Images]:
    """Split images into training and validation, by a seeded permutation.

    Returns:
        What is left to train on, and `count` images to validate on.

    Raises:
        ValueError: nothing would be left to train on.
    """
    if count >= len(images):
        raise ValueError(f"{count} validation images asked for; the training set has {len(images)} images")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[count:]], images[order[:count]]


def hold_out_of_each_class(images: Images, count: int, seed: int) -> tuple[Images, Images]:
    """Split images into training and validation, which gets the same share of each class, chosen by the seed.

    Of a few images of one's own, a permutation of all may hold out none of a class: the validation error then
    says nothing about it.

    Returns:
        What is left to train on, and `count` images to validate on, both in random order.

    Raises:
        ValueError: so many cannot be held out, see `counts_of_each_class`.
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    labels = images.labels[order]
    counts = counts_of_each_class(labels.bincount().tolist(), count)
    if sum(counts) != count:
        raise ValueError(
            f"{count} validation images asked for; with some of each class to train on and to validate on, "
            f"{sum(counts)} can be held out"
        )
    is_held_out = torch.zeros(len(images), dtype=torch.bool)
    for label, held_out in enumerate(counts):
        is_held_out[(labels == label).nonzero()[:held_out, 0]] = True
    return images[order[~is_held_out]], images[order[is_held_out]]


def counts_of_each_class(sizes: list[int], count: int) -> list[int]:
    """How many images of each class to hold out: the same share, rounded.

    Args:
        sizes: images of each class.
        count: to hold out of all classes. They are more where each class with two images or more would
            not have one, and fewer where a class would not keep one.

    Returns:
        A number for each class, below its size or 0.
    """
    share = count / max(sum(sizes), 1)
    counts = [min(1, max(size - 1, 0)) for size in sizes]
    for _ in range(count - sum(counts)):
        growing = [label for label, size in enumerate(sizes) if counts[label] < size - 1]
        if not growing:
            break
        counts[max(growing, key=lambda label: share * sizes[label] - counts[label])] += 1
    return counts


def hold_out_toys(split: ToySplit, count: int, seed: int) -> tuple[Images, Images]:
    """Split toys into training and validation, which gets one toy of each category, chosen by the seed.

    Networks are measured on toys that they were not trained on. Other views of a toy that they were trained
    on would say little about that.

    Returns:
        All pairs of the other toys, to train on, and `count` pairs of those held out, both in random order.

    Raises:
        ValueError: a category has a single toy, or those held out have fewer than `count` pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    is_held_out = np.zeros(len(split.labels), bool)
    for category in np.unique(split.labels):
        toys = np.unique(split.instance[split.labels == category])
        if len(toys) < 2:
            raise ValueError(f"category {category} has a single toy, which cannot be held out")
        held_out = toys[torch.randint(len(toys), (), generator=generator)]
        is_held_out |= (split.labels == category) & (split.instance == held_out)
    if count > is_held_out.sum():
        raise ValueError(
            f"{count} validation images asked for; the toys held out have {is_held_out.sum()} pairs"
        )
    order = torch.randperm(len(split.labels), generator=generator)
    images, first = Images.of(split), torch.from_numpy(is_held_out)[order]
    return images[order[~first]], images[order[first][:count]]
