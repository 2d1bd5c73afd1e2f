"""Answers to several crops of an image, averaged (Sec. 5, Hinton et al. 2018)."""

# N images, J classes, W windows

import torch
from torch import Tensor

from training.data.batches import SingleObjects, to_pixels
from training.evaluate.evaluation import BATCH, class_probabilities
from training.models.build import Network

DISTANCES = (1, 2, 3)  # pixels from the central window along both diagonals (official code)


def windows(size: int, crop: int) -> list[tuple[int, int]]:
    """Row and column of the upper left pixels of 13 windows, the central one first.

    Args:
        size: height and width of the images, pixels.
        crop: height and width of the windows.

    Returns:
        The central one, and four at each of DISTANCES.

    Raises:
        ValueError: the images are too small for windows beside the central one.
    """
    middle = (size - crop) // 2
    if middle < DISTANCES[-1]:
        raise ValueError(
            f"crops of {crop}x{crop} of {size}x{size} pixels have no room to move by {DISTANCES[-1]} pixels"
        )
    corners = [(down * far, right * far) for far in DISTANCES for down in (-1, 1) for right in (-1, 1)]
    return [(middle + down, middle + right) for down, right in [(0, 0), *corners]]


def window_probabilities(model: Network, batches: SingleObjects) -> Tensor:
    """What a network makes of each window of each image.

    Args:
        model: in evaluation mode.
        batches: larger than the crops that the network is shown.

    Returns:
        The probability of each class, float32 [W, N, J], on the CPU; of the central window first. Their mean
        over the windows is the answer to an image.

    Raises:
        ValueError: the images are too small for windows beside the central one.
    """
    crop, pixels = batches.config.crop_pixels or batches.size, batches.images.pixels
    found = []
    for top, left in windows(batches.size, crop):
        window = pixels[:, :, top : top + crop, left : left + crop]
        shown = (to_pixels(window[start : start + BATCH]) for start in range(0, len(window), BATCH))
        found.append(class_probabilities(model, shown))
    return torch.stack(found)
