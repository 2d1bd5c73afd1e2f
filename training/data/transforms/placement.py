"""Images placed in a larger, empty frame."""

# B batch, C channels, H rows, W columns

import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.seeding import RandomChoices


def place(images: Tensor, corners: Tensor, frame: int) -> Tensor:
    """Put each image into a square frame of zeros.

    Args:
        images: [B, C, H, W], any dtype.
        corners: row and column of each image's upper left pixel in the frame, int64 [2, B], 0 to frame - H
            and 0 to frame - W, on the images' device.
        frame: height and width of the frame, pixels, at least those of the images.

    Returns:
        [B, C, frame, frame], same dtype and device.
    """
    height, width = images.shape[2:]
    padded = F.pad(images, (frame - width,) * 2 + (frame - height,) * 2)
    # Where the frame begins in the padded image: the further down the image is to be, the higher up.
    start = torch.stack([frame - height - corners[0], frame - width - corners[1]])
    return windows(padded, start, frame, frame)


def windows(images: Tensor, corners: Tensor, height: int, width: int) -> Tensor:
    """The part of each image that begins at its row and column, [2, B]: [B, C, height, width]."""
    batch, channels = images.shape[:2]
    device = images.device
    rows = corners[0, :, None] + torch.arange(height, device=device)  # [B, height]
    columns = corners[1, :, None] + torch.arange(width, device=device)  # [B, width]
    return images[
        torch.arange(batch, device=device)[:, None, None, None],
        torch.arange(channels, device=device)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def random_corners(choices: RandomChoices, spare: int, objects: tuple[int, ...] = ()) -> Tensor:
    """Corners uniform in 0..spare pixels for the objects of each image, int64 [2, B, *objects]."""
    return choices.integers(spare + 1, before=(2,), after=objects)
