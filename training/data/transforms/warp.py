"""Bent images to train on: turned, scaled, sheared, stretched, with thicker or thinner strokes."""

# B batch, C channels, H rows, W columns; positions are (x, y) from the center, in pixels

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from training.config.data import WarpConfig
from training.data.seeding import RandomChoices
from training.data.transforms.affnist_style import affine_maps, centers
from training.data.transforms.augment import per_image

ELASTIC_POINTS = 5  # per side: where an elastic deformation is drawn at random; it is smooth between them


def random_warp(
    images: Tensor, limits: WarpConfig, choices: RandomChoices, repeat_edges: bool = False
) -> Tensor:
    """Bend each image in its own way, about its center; zeros or its own edge come in from outside.

    Strokes become thicker or thinner first. Then each point goes where scale per axis, shear and rotation
    bring it, each uniform within the limits, and from there by an elastic displacement: Gaussian at a grid
    of points, smooth between them.

    Args:
        images: uint8 [B, C, H, W], 0-255, light strokes on a dark ground.
        limits: of each change.
        choices: source of the changes.
        repeat_edges: for pictures whose ground is not black; else zeros.

    Returns:
        uint8 [B, C, H, W], 0-255, same device.
    """
    height, width = images.shape[2:]
    pixels = _with_other_strokes(images.float(), limits.thickness, choices)
    turn, shear, *scales = (choices.uniform() for _ in range(4))
    least, most = limits.scales
    maps = affine_maps(
        math.radians(limits.rotation_degrees) * (2 * turn - 1),
        limits.shear * (2 * shear - 1),
        *(least + (most - least) * scale for scale in scales),
    )
    coarse = choices.normal(after=(2, ELASTIC_POINTS, ELASTIC_POINTS))
    moved = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)  # [B, 2, H, W]
    places = centers(height, width, images.device) + limits.elastic_pixels * moved.flatten(2)
    inverse = torch.linalg.inv_ex(maps).inverse  # `inv` would wait for a GPU, to see whether there is one
    source = inverse @ places  # for a place in the result it says where to look in the image
    grid = torch.stack([source[:, 0] / (width / 2), source[:, 1] / (height / 2)], dim=-1)
    grid = grid.unflatten(1, (height, width))  # -1 to 1 from edge to edge
    outside = "border" if repeat_edges else "zeros"
    bent = F.grid_sample(pixels, grid, mode="bilinear", padding_mode=outside, align_corners=False)
    return bent.round().to(torch.uint8)


def _with_other_strokes(pixels: Tensor, most: float, choices: RandomChoices) -> Tensor:
    """Each image on its way to strokes that are a pixel wider, or narrower, on both sides.

    Args:
        pixels: float32 [B, C, H, W].
        most: how far on that way, at most; 0 changes nothing.
        choices: source of the amounts.
    """
    amount = per_image(most * (2 * choices.uniform() - 1))
    wider = F.max_pool2d(pixels, 3, stride=1, padding=1)
    narrower = -F.max_pool2d(-pixels, 3, stride=1, padding=1)
    return pixels + amount.clamp(min=0) * (wider - pixels) - amount.clamp(max=0) * (narrower - pixels)
