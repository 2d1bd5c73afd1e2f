"""The images of a run: training, validation and test, as tensors."""

# N images, C channels, H and W height and width

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.config import DataConfig
from training.data import mnist
from training.data.drawn import draw_digits

DRAWN_IMAGES = {"train": 4500, "test": 1000}
DRAWN_SEEDS = {"train": 1, "test": 2}


@dataclass(frozen=True)
class Images:
    """Images uint8 [N, C, H, W], 0-255, and labels int64 [N]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Images":
        """The same images on the device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def __getitem__(self, index: Tensor | slice) -> "Images":
        return Images(self.pixels[index], self.labels[index])


def load_training(config: DataConfig, root: Path, seed: int) -> tuple[Images, Images]:
    """Training and validation images; the validation ones are held out by a seeded permutation.

    Raises:
        FileNotFoundError: a file of the data set is missing; names it and the command that gets it.
        ValueError: the data set is not larger than the validation set that is asked for.
    """
    images = _load(config.name, "train", root)
    held_out = config.validation_images
    if held_out >= len(images):
        raise ValueError(
            f"{held_out} validation images asked for; {config.name} has {len(images)} to train on"
        )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[held_out:]], images[order[:held_out]]


def load_test(config: DataConfig, root: Path) -> Images:
    """The test images of the data set.

    Raises:
        FileNotFoundError: a file of the data set is missing; names it and the command that gets it.
    """
    return _load(config.name, "test", root)


def _load(name: str, split: str, root: Path) -> Images:
    if name == "drawn":
        rng = np.random.default_rng(DRAWN_SEEDS[split])
        labels = np.arange(DRAWN_IMAGES[split]) % 10
        return _to_images(draw_digits(labels, rng), labels)
    data = mnist.read_split(root / name, "train" if split == "train" else "test")
    return _to_images(data.images, data.labels)


def _to_images(pixels: np.ndarray, labels: np.ndarray) -> Images:
    """Grey images [N, H, W] and labels to tensors."""
    return Images(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
