"""Augmentation of whole batches, on the device where they lie."""

import torch
from torch import Tensor
from torch.nn import functional as F

# B batch, C channels, H rows, W columns


def random_shift(images: Tensor, max_shift: int, generator: torch.Generator) -> Tensor:
    """Shift each image by its own whole number of pixels, zeros coming in from outside.

    Sabour et al. 2017, Sec. 5, shift MNIST by up to 2 pixels in each direction.

    Args:
        images: [B, C, H, W], any dtype.
        max_shift: both shifts are uniform in -max_shift..max_shift pixels, down and to the right.
        generator: source of the shifts, on the device of the images.

    Returns:
        [B, C, H, W], same dtype and device.

    Raises:
        ValueError: max_shift < 0.
    """
    if max_shift < 0:
        raise ValueError(f"max_shift must be at least 0 pixels, got {max_shift}")
    if max_shift == 0:
        return images
    batch, channels, height, width = images.shape
    device = images.device
    padded = F.pad(images, (max_shift,) * 4)  # [B, C, H + 2 max_shift, W + 2 max_shift]
    # Where each image's window begins in the padded one; the middle, max_shift, is no shift.
    corners = torch.randint(2 * max_shift + 1, (2, batch, 1), generator=generator, device=device)
    rows = corners[0] + torch.arange(height, device=device)  # [B, H]
    columns = corners[1] + torch.arange(width, device=device)  # [B, W]
    return padded[
        torch.arange(batch, device=device)[:, None, None, None],
        torch.arange(channels, device=device)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def blank_some(
    pixels: Tensor, present: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Replace a random share of the images by empty ones, in which no class is present.

    Args:
        pixels: images, 0 where there is nothing, [B, C, H, W].
        present: 1 where a class is in the image, [B, J].
        share: of the images, 0 to 1.
        generator: source of the choice, on the images' device.

    Returns:
        Images and what is present in them, same shapes and dtypes.
    """
    kept = torch.rand(len(pixels), generator=generator, device=pixels.device) >= share
    return pixels * kept[:, None, None, None], present * kept[:, None]
