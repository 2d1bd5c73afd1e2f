"""What a network's first convolution sees: in the papers, natural images of zero mean and unit variance.

Brightness and contrast are changed afterwards (Sec. 5, Hinton et al. 2018); standardizing would undo a
change made before.
"""

# B batch, C channels, H and W height and width

from torch import Tensor

MIN_VARIANCE = (1 / 255) ** 2  # variance; a flat image stays flat, and has a gradient


def standardize_per_image(pixels: Tensor) -> Tensor:
    """Zero mean and unit variance per image, all channels together, [B, C, H, W]."""
    centered = pixels - pixels.mean(dim=(1, 2, 3), keepdim=True)
    # Libraries round the mean of thousands of numbers differently. Dividing by the small deviation of a pale
    # picture makes that difference larger, up to 255 times; the mean of what is left has next to none.
    centered = centered - centered.mean(dim=(1, 2, 3), keepdim=True)
    variance = centered.square().mean(dim=(1, 2, 3), keepdim=True)
    return centered / variance.clamp(min=MIN_VARIANCE).sqrt()


def standardize_brightness_contrast(pixels: Tensor) -> Tensor:
    """Pictures [B, C, H, W], 0 to 1, of the same brightness and contrast: mean 1/2, deviation 1/6."""
    return (0.5 + standardize_per_image(pixels) / 6).clamp(0, 1)


def adjust_brightness_contrast(x: Tensor, brightness_contrast: Tensor) -> Tensor:
    """Images [B, C, H, W] with other brightness and contrast: amount and factor of each, [B, 2].

    As `tf.image.random_brightness` and then `random_contrast`: the amount is added, then what a pixel differs
    by from the mean of its channel is scaled. Nothing is clamped.
    """
    amount, factor = brightness_contrast[:, :, None, None, None].unbind(dim=1)
    mean = x.mean(dim=(2, 3), keepdim=True)  # [B, C, 1, 1]
    return mean + amount + factor * (x - mean)


def prepare_pixels(pixels: Tensor, standardized: bool, brightness_contrast: Tensor | None) -> Tensor:
    """Images [B, C, H, W], 0 to 1, standardized if configured, then changed as `brightness_contrast` says."""
    x = standardize_per_image(pixels) if standardized else pixels
    return x if brightness_contrast is None else adjust_brightness_contrast(x, brightness_contrast)
