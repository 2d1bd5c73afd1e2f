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
