"""Heat maps over an image as a PNG file."""

import numpy as np
from numpy.typing import NDArray

from export.contract.receptive_fields import Grid
from service.http.png import brightness, to_png

# M rows of maps, T maps in each, R x R places; H rows, W columns, C channels

Floats = NDArray[np.float32]

TILE_PIXELS = 112  # side of a map, about
DIMMED = 0.7  # brightness of the image below the colors
OPAQUE = 0.85  # of the largest value
POSITIVE, NEGATIVE = np.array([1.0, 0.35, 0.0]), np.array([0.1, 0.5, 1.0])  # orange, blue


def heat_strip(pixels: Floats, heat: Floats, grid: Grid) -> bytes:
    """Maps over the same image, all with the same scale of colors; blocks.

    Args:
        pixels: the image, [H, W, C] in 0-1; two channels are views, which stand side by side.
        heat: of each place, [M, T, R, R]; values above 0 become orange, those below blue.
        grid: the places.

    Returns:
        A PNG file with a row of T tiles for each of the M rows.
    """
    rows, columns = heat.shape[:2]
    height, width = pixels.shape[:2]
    maps = _spread(grid, height) @ heat @ _spread(grid, width).T
    maps /= max(float(np.abs(maps).max()), 1e-12)
    if pixels.shape[2] == 2:
        maps = np.concatenate([maps, maps], axis=-1)
    [gray] = brightness(pixels[None])
    opacity = OPAQUE * np.abs(maps)[..., None]  # [M, T, H, W, 1]
    tint = np.where(maps[..., None] > 0, POSITIVE, NEGATIVE)
    tiles = (1 - opacity) * DIMMED * gray[..., None] + opacity * tint
    zoom = max(1, round(TILE_PIXELS / height))
    strip = tiles.transpose(0, 2, 1, 3, 4).reshape(rows * height, columns * gray.shape[1], 3)
    return to_png(strip.repeat(zoom, axis=0).repeat(zoom, axis=1).astype(np.float32))


def _spread(grid: Grid, size: int) -> Floats:
    """What each place's value adds to each pixel along an axis, [size, R]: most at the center of its field.

    Equal values make an even map, which fades where there are no more places.
    """
    pixels = np.arange(size)[:, None] + 0.5
    deviation = max(grid.field / 6, grid.step / 2)
    bells = np.exp(-0.5 * ((pixels - np.array(grid.centers)) / deviation) ** 2)
    even: Floats = (bells * grid.step / (deviation * np.sqrt(2 * np.pi))).astype(np.float32)
    return even
