"""Pictures of more than 8 bits and of floats: what is white in them, and what is no data."""

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from export.contract.pictures import PictureError, read_picture
from tests.support import small_pictures
from training.data.synthetic.drawn_digits import draw_digits

MAX_PIXELS = 10**7
NO_DATA_TAG = 42113  # GDAL_NODATA
COMBINATIONS = [
    ("PNG", np.uint16, 255),
    ("PNG", np.uint16, 1023),
    ("PNG", np.uint16, 4095),
    ("TIFF", np.uint16, 16383),
    ("TIFF", np.uint16, 65535),
    ("TIFF", np.int32, 255),
    ("TIFF", np.int32, 65535),
    ("TIFF", np.float32, 1),
    ("TIFF", np.float32, 255),
]


@pytest.fixture
def levels() -> np.ndarray:
    """A digit on a gray ground, neither black nor white in it."""
    [digit] = draw_digits(np.array([5]), np.random.default_rng(0), 40)
    return (200 - 0.6 * digit).astype(np.uint8)


def saved(numbers: np.ndarray, image_format: str = "TIFF", **options: object) -> bytes:
    return small_pictures.saved(Image.fromarray(numbers), image_format, **options)


def read(content: bytes) -> np.ndarray:
    return np.asarray(read_picture(content, MAX_PIXELS), int)


@pytest.mark.parametrize(("image_format", "kind", "white"), COMBINATIONS)
def test_whatever_type_holds_them_the_numbers_give_the_picture_of_8_bits(image_format, kind, white, levels):
    exact = levels * (white / 255)
    numbers = (exact if kind == np.float32 else np.rint(exact)).astype(kind)
    np.testing.assert_allclose(read(saved(numbers, image_format)), levels, atol=1)


@pytest.mark.parametrize(("low", "high"), [(-1000, 2000), (-3, -1), (0, 10**6)])
def test_integers_of_any_other_range_go_from_their_smallest_to_their_largest(low, high):
    numbers = np.linspace(low, high, 256).astype(np.int32)[None].repeat(8, axis=0)
    shown = read(saved(numbers))[0]
    assert (shown[0], shown[-1]) == (0, 255)
    assert (np.diff(shown) >= 0).all()


@pytest.mark.parametrize(
    ("kind", "no_data"),
    [
        (np.float32, np.finfo(np.float32).min),
        (np.float32, 9.96921e36),
        (np.float32, -9999),
        (np.int32, -9999),
        (np.int32, -32768),
        (np.int32, np.iinfo(np.int32).min),
        (np.int32, np.iinfo(np.int32).max),
    ],
)
def test_a_pixel_without_data_changes_no_other_and_shows_the_mean(kind, no_data, levels):
    numbers = levels.astype(kind)
    numbers[0, 0] = no_data
    shown = read(saved(numbers))
    np.testing.assert_array_equal(shown.ravel()[1:], levels.ravel()[1:])
    assert abs(shown[0, 0] - levels.mean()) < 2


def test_what_the_file_declares_to_be_no_data_is_none(levels):
    numbers = levels.astype(np.uint16)
    numbers[3, 4] = 65535
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[NO_DATA_TAG] = "65535"
    shown = read(saved(numbers, tiffinfo=tags))
    assert shown[3, 4] != 255
    shown[3, 4] = levels[3, 4]
    np.testing.assert_array_equal(shown, levels)


@pytest.mark.parametrize("declared", ["nan", "255"])
def test_a_usual_number_for_no_data_is_one_beside_the_declared_one(declared, levels):
    numbers = (levels / 255).astype(np.float32)
    numbers[3, 4], numbers[5, 6] = float(declared), -9999
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[NO_DATA_TAG] = declared
    shown = read(saved(numbers, tiffinfo=tags)).astype(float)
    assert abs(shown[[3, 5], [4, 6]] - levels.mean()).max() < 3


def test_no_data_in_a_picture_that_is_shrunk_stays_out_of_its_neighbors():
    numbers = np.full((2100, 2100), 0.25, np.float32)
    numbers[:1000] = 0.75
    numbers[::50, ::50] = np.finfo(np.float32).min
    shown = read(saved(numbers))
    assert abs(shown[:400] - 191).max() <= 32  # a fourth of the pixels that became one is the mean
    assert abs(shown[600:] - 64).max() <= 32


def test_a_picture_without_any_data_is_refused():
    with pytest.raises(PictureError, match="no pixel with data"):
        read(saved(np.full((20, 20), np.finfo(np.float32).min, np.float32)))


def test_a_negative_number_among_others_is_no_missing_one():
    numbers = np.full((20, 20), -20_000, np.int32)
    numbers[5, 5], numbers[6, 6] = -9999, 20_000
    shown = read(saved(numbers))
    assert (shown[0, 0], shown[5, 5], shown[6, 6]) == (0, 64, 255)
