"""Augmentation of whole batches, on the device where they lie."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from training.data.seeding import RandomChoices
from training.data.transforms.placement import windows

# N images, B batch, C channels, H rows, W columns


def random_shift(
    images: Tensor, max_shift: int, choices: RandomChoices, repeat_edges: bool = False
) -> Tensor:
    """Shift each image by its own whole number of pixels, zeros or its own edge coming in from outside.

    Sabour et al. 2017, Sec. 5, shift MNIST by up to 2 pixels in each direction.

    Args:
        images: [B, C, H, W], any dtype.
        max_shift: both shifts are uniform in -max_shift..max_shift pixels, down and to the right.
        choices: source of the shifts.
        repeat_edges: for pictures whose ground is not black; else zeros.

    Returns:
        [B, C, H, W], same dtype and device.
    """
    if max_shift == 0:
        return images
    # [B, C, H + 2 max_shift, W + 2 max_shift]
    padded = _edges_repeated(images, max_shift) if repeat_edges else F.pad(images, (max_shift,) * 4)
    # Where each image's window begins in the padded one; the middle, max_shift, is no shift.
    corners = choices.integers(2 * max_shift + 1, before=(2,))
    return windows(padded, corners, images.shape[2], images.shape[3])


def random_crop(images: Tensor, size: int, choices: RandomChoices) -> Tensor:
    """Take from each image its own square window, all places equally likely.

    Args:
        images: [B, C, H, W], any dtype.
        size: height and width of the windows, pixels, at most the images' shorter side.
        choices: source of the places.

    Returns:
        [B, C, size, size], same dtype and device.
    """
    height, width = images.shape[2:]
    if height == width == size:
        return images
    top, left = choices.integers(height - size + 1), choices.integers(width - size + 1)
    return windows(images, torch.stack([top, left]), size, size)


def center_crop(images: Tensor, size: int) -> Tensor:
    """Take the square window in the middle of each image; what is over by an odd number is cut lower right.

    Args:
        images: [B, C, H, W], any dtype.
        size: height and width of the window, pixels, at most the images' shorter side.

    Returns:
        [B, C, size, size], a view.
    """
    height, width = images.shape[2:]
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]


def random_flip(images: Tensor, choices: RandomChoices) -> Tensor:
    """Mirror each image left to right, or leave it, with equal probability.

    Args:
        images: [B, C, H, W], any dtype.
        choices: source of the choice.

    Returns:
        [B, C, H, W], same dtype and device.
    """
    mirrored = choices.uniform() < 0.5
    return torch.where(per_image(mirrored), images.flip(3), images)


def random_brightness_contrast(
    max_brightness: float, contrast: tuple[float, float], choices: RandomChoices
) -> Tensor:
    """How brightness and contrast of each image change, where a network does that (`models/standardize.py`).

    Args:
        max_brightness: the amounts that are added are uniform in -max_brightness..max_brightness.
        contrast: smallest and largest factor of the differences to the mean; all between are equally likely.
        choices: source of both.

    Returns:
        Amount and factor, float32 [B, 2].
    """
    return torch.stack([_amounts(max_brightness, choices), _factors(*contrast, choices)], dim=1)


def clamped_brightness(pixels: Tensor, maximum: float, choices: RandomChoices) -> Tensor:
    """Make each image lighter or darker, all its pixels by the same amount, none beyond black and white.

    Args:
        pixels: float [B, C, H, W], 0 to 1.
        maximum: the amounts are uniform in -maximum..maximum.
        choices: source of the amounts.

    Returns:
        [B, C, H, W], 0 to 1, same dtype and device.
    """
    if maximum == 0:
        return pixels
    return (pixels + per_image(_amounts(maximum, choices))).clamp(0, 1)


def clamped_contrast(pixels: Tensor, minimum: float, maximum: float, choices: RandomChoices) -> Tensor:
    """Scale what each image's pixels differ by from the mean of their channel, none beyond black and white.

    Args:
        pixels: float [B, C, H, W], 0 to 1.
        minimum: smallest factor; 1 changes nothing.
        maximum: largest factor; all between are equally likely.
        choices: source of the factors.

    Returns:
        [B, C, H, W], 0 to 1, same dtype and device.
    """
    if minimum == maximum == 1:
        return pixels
    mean = pixels.mean(dim=(2, 3), keepdim=True)  # [B, C, 1, 1]
    return (mean + per_image(_factors(minimum, maximum, choices)) * (pixels - mean)).clamp(0, 1)


def resize(images: Tensor, size: int) -> Tensor:
    """Bring whole images to a square size by Pillow, pixel for pixel as when they are served.

    Each new pixel is a weighted mean of all that it covers, so that nothing aliases.

    Args:
        images: uint8 [N, C, H, W], 0-255.
        size: new height and width, pixels.

    Returns:
        uint8 [N, C, size, size], 0-255, same device.
    """
    if images.shape[2:] == (size, size):
        return images
    planes = images.flatten(0, 1).cpu().numpy()
    resized = np.empty((len(planes), size, size), np.uint8)
    for plane, small in zip(planes, resized, strict=True):
        small[:] = np.asarray(Image.fromarray(plane).resize((size, size), Image.Resampling.BILINEAR))
    return torch.from_numpy(resized).unflatten(0, images.shape[:2]).to(images.device)


def _edges_repeated(images: Tensor, width: int) -> Tensor:
    """Images with `width` more pixels on each side; `F.pad` repeats no edges of uint8."""
    rows, columns = (
        torch.arange(-width, side + width, device=images.device).clamp(0, side - 1)
        for side in images.shape[2:]
    )
    return images[:, :, rows][..., columns]


def _amounts(maximum: float, choices: RandomChoices) -> Tensor:
    """Uniform in -maximum..maximum, [B]."""
    return maximum * (2 * choices.uniform() - 1)


def _factors(minimum: float, maximum: float, choices: RandomChoices) -> Tensor:
    """Uniform in minimum..maximum, [B]."""
    return minimum + (maximum - minimum) * choices.uniform()


def per_image(values: Tensor) -> Tensor:
    """[B] to [B, 1, 1, 1]."""
    return values[:, None, None, None]
