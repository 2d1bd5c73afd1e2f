"""Numbers that Pillow cuts off, misreads or does not read: a right picture, or an error that says so."""

import warnings

import numpy as np
import pytest
from PIL import Image

from export.contract.pictures import PictureError, PictureFormatError, read_picture
from tests.support.deep_pictures import png16, tiff
from tests.support.small_pictures import saved
from training.data.synthetic.drawn_digits import draw_digits

MAX_PIXELS = 10**7
COLOR = {
    "PNG, RGB": lambda gray, white: png16(np.dstack([gray] * 3)),
    "PNG, RGBA": lambda gray, white: png16(np.dstack([*[gray] * 3, np.full_like(gray, white)])),
    "PNG, RGBA, opaque in 16 bits": lambda gray, white: png16(
        np.dstack([*[gray] * 3, np.full_like(gray, 65535)])
    ),
    "PNG, gray and alpha": lambda gray, white: png16(np.dstack([gray, np.full_like(gray, white)])),
    "TIFF, RGB": lambda gray, white: tiff(np.dstack([gray] * 3)),
    "TIFF, RGB, big-endian": lambda gray, white: tiff(np.dstack([gray] * 3), ">"),
    "TIFF, RGBA": lambda gray, white: tiff(np.dstack([*[gray] * 3, np.full_like(gray, white)])),
}


@pytest.fixture
def levels() -> np.ndarray:
    """A digit on a gray ground, [40, 40], neither black nor white in it."""
    [digit] = draw_digits(np.array([5]), np.random.default_rng(0), 40)
    return (200 - 0.6 * digit.reshape(40, 40)).astype(np.uint8)


def read(content: bytes) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return np.asarray(read_picture(content, MAX_PIXELS).convert("L"), int)


def scaled(levels: np.ndarray, bits: int, kind: str = "u2") -> np.ndarray:
    return np.rint(levels / 255 * (2**bits - 1)).astype(kind)


@pytest.mark.parametrize(
    ("kind", "bits"), [*((kind, 12) for kind in COLOR), *(("PNG, RGB", bits) for bits in (8, 10, 14))]
)
def test_16_bit_color_that_uses_low_bits_alone_is_refused_and_told_what_to_send(kind, bits, levels):
    with pytest.raises(PictureError, match="send 8 bits a channel, or 16-bit gray"):
        read(COLOR[kind](scaled(levels, bits), 2**bits - 1))


@pytest.mark.parametrize("kind", COLOR)
def test_16_bit_color_of_the_full_range_is_read(kind, levels):
    np.testing.assert_allclose(read(COLOR[kind](scaled(levels, 16), 65535)), levels, atol=1)


def test_16_bit_color_whose_channels_lie_one_after_the_other_is_refused(levels):
    with pytest.raises(PictureError, match="channels apart, which is not read; send 8 bits"):
        read(tiff(np.dstack([scaled(levels, 16)] * 3), planar=True))


def test_black_ink_on_a_transparent_sheet_of_16_bits_is_read(levels):
    alpha = np.where(levels < 150, 65535, 0).astype(np.uint16)
    shown = read(png16(np.dstack([*[np.zeros_like(alpha)] * 3, alpha])))
    np.testing.assert_array_equal(shown, np.where(levels < 150, 0, 255))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "told"), [("f8", "floats of 64 bits"), ("f2", "floats of 16 bits")])
def test_a_sound_tiff_of_numbers_that_are_not_read_is_told_what_is_read(kind, told, order, levels):
    with pytest.raises(PictureFormatError, match=f"TIFF file has {told}.*not read; read are .* floats of 32"):
        read(tiff((levels / 255).astype(kind)[..., None], order))


def test_no_message_names_an_object_in_memory(levels):
    whole = saved(Image.fromarray(levels), "TIFF")
    damaged = [
        whole[:9],
        *(start + bytes(40) for start in (b"II*\0", b"MM\0+", b"GIF89a", b"BM", b"\xff\xd8\xff")),
    ]
    for content in damaged:
        with pytest.raises(PictureError) as caught:
            read(content)
        assert " at 0x" not in str(caught.value)


@pytest.mark.parametrize("bits", [8, 16, 31, 32])
def test_unsigned_numbers_of_32_bits_give_the_picture_of_8(bits, levels):
    levels[0, 0], levels[0, 1] = 0, 255
    np.testing.assert_allclose(read(tiff(scaled(levels, bits, "u4")[..., None])), levels, atol=1)


@pytest.mark.parametrize("declared", ["-1.7976931348623157e+308", "1.797e308", "inf", "-inf", "nan"])
def test_no_data_that_no_float32_holds_is_left_out_without_a_warning(declared, levels):
    numbers = (levels / 255).astype(np.float32)
    with np.errstate(over="ignore"):
        numbers[0, 0] = np.float32(declared)
    shown = read(tiff(numbers[..., None], no_data=declared))
    np.testing.assert_array_equal(shown.ravel()[1:], levels.ravel()[1:])
    assert abs(shown[0, 0] - levels.mean()) < 2


@pytest.mark.parametrize(("kind", "order"), [("u1", "<"), ("u1", ">"), ("u2", "<"), ("f4", "<"), ("f4", ">")])
def test_a_tiff_whose_0_is_white_is_no_negative(kind, order, levels):
    levels[0, 0], levels[0, 1] = 0, 255
    inverted = {"u1": 255 - levels, "u2": 65535 - scaled(levels, 16), "f4": 1 - levels / 255}[kind]
    shown = read(tiff(inverted.astype(kind)[..., None], order, white_zero=True))
    np.testing.assert_allclose(shown, levels, atol=1)


def test_unsigned_numbers_of_32_bits_whose_0_is_white_are_not_read(levels):
    with pytest.raises(PictureFormatError, match=r"integers of 32 bits \(channels: 1, 0 is white\)"):
        read(tiff(scaled(levels, 32, "u4")[..., None], white_zero=True))
