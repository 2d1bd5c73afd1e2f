"""Heat maps over an image: in the right place, in the right color, all with the same scale."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from export.contract.receptive_fields import Grid
from service.http.heat_png import DIMMED, heat_strip

GRID = Grid(6, 2, 17)  # of 28x28 pixels: centers 8.5 to 18.5
ZOOM = 4
TILE = 28 * ZOOM


def drawn(heat: np.ndarray, pixels: np.ndarray | None = None, grid: Grid = GRID) -> np.ndarray:
    """The picture, [H, W, 3] in 0-255."""
    image = np.zeros((28, 28, 1), np.float32) if pixels is None else pixels
    return np.asarray(Image.open(BytesIO(heat_strip(image, heat.astype(np.float32), grid)))).astype(int)


def test_there_is_a_tile_for_each_map():
    assert drawn(np.zeros((3, 2, 6, 6))).shape == (3 * TILE, 2 * TILE, 3)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 5), (5, 3)])
@pytest.mark.parametrize("value", [1.0, -1.0])
def test_a_value_is_brightest_at_its_center_and_its_sign_is_its_color(row, column, value):
    heat = np.zeros((1, 1, 6, 6))
    heat[0, 0, row, column] = value
    picture = drawn(heat)
    strongest = np.unravel_index(picture.sum(axis=2).argmax(), picture.shape[:2])
    expected = np.array([8.5 + 2 * row, 8.5 + 2 * column]) * ZOOM
    assert np.abs(np.array(strongest) + 0.5 - expected).max() <= ZOOM
    red, _, blue = picture[strongest]
    assert (red > blue) == (value > 0)


def test_maps_of_one_picture_have_the_same_scale():
    heat = np.zeros((2, 1, 6, 6))
    heat[0, 0, 3, 3], heat[1, 0, 3, 3] = 1.0, 0.25
    picture = drawn(heat)
    strong, weak = picture[:TILE].max(), picture[TILE:].max()
    assert weak == pytest.approx(strong / 4, abs=1)


def test_without_heat_there_is_the_image_alone():
    pixels = np.random.default_rng(0).random((28, 28, 1), np.float32)
    picture = drawn(np.zeros((1, 1, 6, 6)), pixels)[::ZOOM, ::ZOOM]
    np.testing.assert_allclose(picture, np.repeat(255 * DIMMED * pixels, 3, axis=2), atol=1.5)


def test_equal_values_make_an_even_map():
    middle = drawn(np.ones((1, 1, 13, 13)), grid=Grid(13, 2, 5))[
        10 * ZOOM : 18 * ZOOM, 10 * ZOOM : 18 * ZOOM, 0
    ]
    assert np.ptp(middle) < 0.1 * middle.mean()


def test_over_both_views_of_a_pair_there_is_the_same_map():
    heat = np.random.default_rng(0).normal(size=(1, 1, 6, 6))
    left, right = np.split(drawn(heat, np.zeros((28, 28, 2), np.float32)), 2, axis=1)
    np.testing.assert_array_equal(left, right)
