"""Digits in a 40x40 frame: shifted, to train on, and affinely transformed, to test on (Sec. 5.2).

Sabour et al. 2017 train on MNIST digits placed at random in the frame and test on affNIST, whose digits are
turned, sheared and scaled as well. The images made here follow affNIST's description
(https://www.cs.toronto.edu/~tijmen/affNIST/) but are not affNIST's: the two sets have different names, and
results on one do not hold for the other.
"""

# N images, B batch, C channels, H and W height and width; positions are (x, y) from the center, in pixels

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from training.data.images import Images
from training.data.seeding import RandomChoices, generator_for
from training.data.transforms.placement import place, random_corners

FRAME_PIXELS = 40
MAX_ROTATION_DEGREES = 20
MAX_SHEAR = 0.2
SCALES = (0.8, 1.2)  # each axis has its own
SET_SEED = 0  # of the places and maps of images that are measured on


def shifted(pixels: Tensor, choices: RandomChoices) -> Tensor:
    """Place each image anywhere in the frame, for a training step.

    Args:
        pixels: square images, no larger than the frame, [B, C, H, H], any dtype.
        choices: source of the places.

    Returns:
        [B, C, FRAME_PIXELS, FRAME_PIXELS], same dtype and device.
    """
    return place(pixels, random_corners(choices, FRAME_PIXELS - pixels.shape[2]), FRAME_PIXELS)


def shifted_set(images: Images, batch: int, versions: int = 1) -> Iterator[Images]:
    """Each image at places of its own, the same ones each time and everywhere: the paper's expanded test set.

    Args:
        images: a test or validation split of square images, no larger than the frame.
        batch: images at a time; the last of each N may be fewer. The set does not depend on it.
        versions: of each image, one after the other.

    Yields:
        Images uint8 [B, C, FRAME_PIXELS, FRAME_PIXELS] on the device where the set lies.
    """
    for version in range(versions):
        spare = FRAME_PIXELS - images.pixels.shape[2]
        choices = RandomChoices(generator_for(SET_SEED, version), len(images))
        corners = random_corners(choices, spare).to(images.pixels.device)
        for start in range(0, len(images), batch):
            some = slice(start, start + batch)
            yield Images(place(images.pixels[some], corners[:, some], FRAME_PIXELS), images.labels[some])


def affnist_style_set(images: Images, batch: int, versions: int = 1) -> Iterator[Images]:
    """Each image under affine maps of its own, the same ones each time; on every device up to rounding.

    Args:
        images: a test split, light ink on a ground of 0.
        batch: images at a time; the last of each N may be fewer. The set does not depend on it.
        versions: of each image, one after the other; affNIST has 32 of each digit.

    Yields:
        Images uint8 [B, C, FRAME_PIXELS, FRAME_PIXELS] on the device where the set lies.
    """
    device = images.pixels.device
    for version in range(versions):
        generator = generator_for(SET_SEED, version)
        maps = random_maps(len(images), generator).to(device)
        where = torch.rand(len(images), 2, generator=generator).to(device)
        for start in range(0, len(images), batch):
            some = slice(start, start + batch)
            pixels = images.pixels[some]
            offsets = offsets_within(pixels, maps[some], where[some], FRAME_PIXELS)
            yield Images(transform(pixels, maps[some], offsets, FRAME_PIXELS), images.labels[some])


def random_maps(count: int, generator: torch.Generator) -> Tensor:
    """Scale per axis, then shear, then rotation, each uniform in its range: float32 [count, 2, 2]."""
    uniform = torch.rand(4, count, generator=generator, device=generator.device)
    angle = math.radians(MAX_ROTATION_DEGREES) * (2 * uniform[0] - 1)
    shear = MAX_SHEAR * (2 * uniform[1] - 1)
    return affine_maps(angle, shear, *(SCALES[0] + (SCALES[1] - SCALES[0]) * uniform[2:]))


def affine_maps(angle: Tensor, shear: Tensor, scale_x: Tensor, scale_y: Tensor) -> Tensor:
    """Linear maps that scale, then shear, then rotate, float32 [B, 2, 2].

    Args:
        angle: of the rotation, radians [B].
        shear: how far a point one pixel further down moves to the right, pixels [B].
        scale_x: factor from left to right, [B].
        scale_y: factor from top to bottom, [B].
    """
    cos, sin = angle.cos(), angle.sin()
    rotation = torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))
    zero = torch.zeros_like(shear)
    sheared = torch.stack([scale_x, shear * scale_y, zero, scale_y], dim=-1).unflatten(-1, (2, 2))
    return rotation @ sheared


def offsets_within(pixels: Tensor, maps: Tensor, where: Tensor, frame: int) -> Tensor:
    """Translations that keep all ink in the frame.

    Args:
        pixels: images, [B, C, H, W], 0 where there is no ink.
        maps: linear maps, [B, 2, 2].
        where: which of all fitting translations to take, per axis, [B, 2], 0 to 1.
        frame: height and width of the frame.

    Returns:
        Translations after the map, [B, 2], pixels. Ink that is too large for the frame is put in its middle,
        and so is the center of an image without ink.
    """
    points = centers(pixels.shape[2], pixels.shape[3], pixels.device)  # [2, H W]
    moved = maps @ points  # [B, 2, H W]
    ink = pixels.amax(dim=1).flatten(1).unsqueeze(1) > 0  # [B, 1, H W]
    # Interpolated, a pixel of ink reaches as far as the centers of its neighbors.
    reach = maps.abs().sum(dim=2)  # [B, 2]
    low = torch.where(ink, moved, math.inf).amin(dim=2) - reach
    high = torch.where(ink, moved, -math.inf).amax(dim=2) + reach
    middle = torch.where(high >= low, -(low + high) / 2, 0)  # without ink, high is below low
    room = torch.where(high >= low, frame - (high - low), 0).clamp(min=0)
    return middle + (where - 0.5) * room


def transform(pixels: Tensor, maps: Tensor, offsets: Tensor, frame: int) -> Tensor:
    """Images under affine maps, interpolated bilinearly, with zeros from outside.

    Args:
        pixels: uint8 [B, C, H, W], 0-255.
        maps: from where a point is in the image to where it is in the frame, [B, 2, 2].
        offsets: added after that, [B, 2], pixels.
        frame: height and width of the result.

    Returns:
        uint8 [B, C, frame, frame], 0-255.
    """
    height, width = pixels.shape[2:]
    back = torch.linalg.inv(maps)  # for a place in the frame it says where to look in the image
    source = back @ (centers(frame, frame, pixels.device) - offsets.unsqueeze(2))  # [B, 2, frame^2]
    half = torch.tensor([width / 2, height / 2], device=pixels.device)
    grid = (source.transpose(1, 2) / half).unflatten(1, (frame, frame))  # -1 to 1 from edge to edge
    moved = F.grid_sample(pixels.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved.round().to(torch.uint8)


def centers(height: int, width: int, device: torch.device) -> Tensor:
    """Centers of the pixels, row by row, seen from the center of the image: float32 [2, H W]."""
    y = torch.arange(height, device=device) - (height - 1) / 2
    x = torch.arange(width, device=device) - (width - 1) / 2
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([columns.flatten(), rows.flatten()])
