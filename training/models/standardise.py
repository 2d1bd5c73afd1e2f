"""Zero mean and unit variance for each image, as both papers prepare natural pictures."""

# B batch, C channels, H and W height and width

from torch import Tensor

LEAST = (1 / 255) ** 2  # variance; a flat image stays flat, and has a gradient


def standardise(pixels: Tensor) -> Tensor:
    """Zero mean and unit variance per image, all channels together, [B, C, H, W]."""
    centred = pixels - pixels.mean(dim=(1, 2, 3), keepdim=True)
    variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
    return centred / variance.clamp(min=LEAST).sqrt()
