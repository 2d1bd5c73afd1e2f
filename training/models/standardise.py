"""Zero mean and unit variance for each image, as both papers prepare natural pictures."""

# B batch, C channels, H and W height and width

from torch import Tensor


def standardise(pixels: Tensor) -> Tensor:
    """Zero mean and unit variance per image, all channels together, [B, C, H, W]."""
    centred = pixels - pixels.mean(dim=(1, 2, 3), keepdim=True)
    std = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
    return centred / std.clamp(min=1 / 255)  # a flat image stays flat
