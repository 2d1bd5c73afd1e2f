"""Images and labels as tensors."""

# N images, C channels, H and W height and width

from dataclasses import dataclass

import torch
from torch import Tensor

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
    """Part the images for training from those for validation, by a seeded permutation.

    Returns:
        What is left to train on, and `count` images to validate on.

    Raises:
        ValueError: nothing would be left to train on.
    """
    if count >= len(images):
        raise ValueError(f"{count} validation images asked for; the training set has {len(images)} images")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[count:]], images[order[:count]]
