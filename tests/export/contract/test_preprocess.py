import gc
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from export.contract.arrays import ArrayError, array_values, in_range
from export.contract.manifest import Preprocessing
from export.contract.pictures import PictureError, PictureFormatError, read_picture
from export.contract.preprocess import quantiles, to_input
from tests.support.small_pictures import saved, to_npy
from training.data.datasets import load_split
from training.data.synthetic.drawn_digits import draw_digits

DIGIT = Preprocessing(height=28, width=28, polarity="light-on-dark", placement="digit")
MAX_PIXELS = 50_000_000


def drawn(digit: int = 5, size: int = 28) -> Image.Image:
    return Image.fromarray(draw_digits(np.array([digit]), np.random.default_rng(1), size)[0])


def colorful() -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (15, 20, 3), np.uint8)).resize((80, 60))


def written_on(ground: int, ink: int, size: tuple[int, int] = (320, 240)) -> Image.Image:
    """A drawn 5, off center."""
    page = Image.new("L", size, ground)
    page.paste(ink, (30, 40), drawn(size=150))
    return page


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


# bytes -> picture


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_every_allowed_format_is_read(image_format):
    picture = read_picture(saved(colorful(), image_format), MAX_PIXELS)
    assert picture.size == (80, 60)
    error = np.asarray(picture.convert("RGB"), float) - np.asarray(colorful(), float)
    assert np.abs(error).mean() < 12


def test_the_first_frame_of_an_animation_is_read():
    frames = [Image.new("L", (20, 20), level) for level in (10, 200)]
    content = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_picture(content, MAX_PIXELS).convert("L").getpixel((5, 5)) == 10


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an image",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.7",
        b"%!PS-Adobe-3.0",
        b"\0\0\0\x20ftypmp42" + bytes(500),
        b"\x1f\x8b" + bytes(50),
        b"GIF88a",
        b"RIFF\0\0\0\0WAVE",
    ],
    ids=["nothing", "text", "SVG", "PDF", "PostScript", "MP4", "gzip", "half a GIF", "WAVE"],
)
def test_what_is_not_an_allowed_format_is_unsupported(content):
    with pytest.raises(PictureFormatError, match="expected a PNG, JPEG"):
        read_picture(content, MAX_PIXELS)


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
@pytest.mark.parametrize("kept", [0.95, 0.5, 0.1])
def test_a_file_cut_short_is_refused(image_format, kept):
    content = saved(colorful(), image_format)
    with pytest.raises(PictureError, match=r"damaged or cut short|expected"):
        read_picture(content[: int(len(content) * kept)], MAX_PIXELS)


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_damaged_files_raise_nothing_but_picture_errors(image_format):
    rng = np.random.default_rng(0)
    whole = np.frombuffer(saved(colorful(), image_format), np.uint8)
    refused = 0
    for _ in range(150):
        damaged = whole.copy()
        reach = int(rng.choice([30, 300, len(whole)]))
        damaged[rng.integers(0, min(reach, len(whole)), rng.integers(1, 20))] = rng.integers(256)
        try:
            read_picture(damaged.tobytes(), 1_000_000)
        except PictureError:
            refused += 1
    assert refused


def test_one_pixel_is_too_little():
    with pytest.raises(PictureError, match="1x1; expected at least 8x8"):
        read_picture(saved(Image.new("L", (1, 1)), "PNG"), MAX_PIXELS)


def test_the_exif_orientation_is_applied():
    upright = Image.new("RGB", (64, 32), "white")
    ImageDraw.Draw(upright).rectangle((0, 0, 15, 15), fill="black")  # top left
    for orientation, undo in enumerate(
        [None, None, *(Image.Transpose[n] for n in ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM"))]
        + [Image.Transpose[n] for n in ("TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270")]
    ):
        stored = upright.transpose(undo) if undo is not None else upright
        exif = Image.Exif()
        exif[0x0112] = orientation
        for image_format in ("JPEG", "PNG", "WEBP", "TIFF"):
            picture = read_picture(saved(stored, image_format, exif=exif), MAX_PIXELS).convert("L")
            assert picture.size == (64, 32)
            assert picture.getpixel((5, 5)) < 60
            assert picture.getpixel((60, 28)) > 200


def test_gray_of_16_bits_is_scaled_not_clipped():
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(8, axis=0)
    for image_format in ("PNG", "TIFF"):
        picture = read_picture(saved(Image.fromarray(ramp), image_format), MAX_PIXELS)
        np.testing.assert_array_equal(np.asarray(picture)[0], np.arange(256))


def test_floats_are_scaled_and_not_a_number_is_refused():
    ramp = np.linspace(0, 1, 256, dtype=np.float32)[None].repeat(8, axis=0)
    for values in (ramp, ramp * 3000 - 1000):
        picture = read_picture(saved(Image.fromarray(values), "TIFF"), MAX_PIXELS)
        np.testing.assert_array_equal(np.asarray(picture)[0], np.arange(256))
    ramp[3, 3] = np.nan
    with pytest.raises(PictureError, match="not finite"):
        read_picture(saved(Image.fromarray(ramp), "TIFF"), MAX_PIXELS)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_color_mode_of_a_png_shows_the_same_digit(mode):
    page = written_on(255, 0).point(lambda level: 255 * (level > 127))
    picture = read_picture(saved(page.convert(mode), "PNG"), MAX_PIXELS)
    np.testing.assert_array_equal(np.asarray(picture.convert("L")), np.asarray(page))


def test_cmyk_is_converted():
    page = Image.new("CMYK", (40, 40), (0, 0, 0, 255))
    page.paste((0, 0, 0, 0), (20, 0, 40, 40))
    picture = read_picture(saved(page, "JPEG"), MAX_PIXELS).convert("L")
    assert picture.getpixel((5, 20)) < 60
    assert picture.getpixel((35, 20)) > 240


@pytest.mark.parametrize("ink", [0, 255])
def test_ink_on_a_transparent_sheet_stays_visible(ink):
    sheet = Image.merge("LA", [Image.new("L", (200, 200), ink), drawn(size=200)])
    value = to_input(read_picture(saved(sheet, "PNG"), MAX_PIXELS), DIGIT)
    assert likeness(value, np.asarray(drawn())) > 0.9


def test_transparent_corners_do_not_turn_a_page_into_a_dark_picture():
    page = written_on(250, 20).convert("RGBA")
    page.putalpha(ImageOps.expand(Image.new("L", (300, 220), 255), 10, 0))
    picture = read_picture(saved(page, "PNG"), MAX_PIXELS).convert("L")
    assert picture.getpixel((0, 0)) == 255


# picture -> input


@pytest.mark.parametrize("rule", ["auto", "off"])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA"])
def test_a_picture_of_the_models_size_is_taken_as_it_is(mode, rule):
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)
    content = saved(Image.fromarray(pixels).convert(mode), "PNG")
    value = to_input(read_picture(content, MAX_PIXELS), DIGIT, rule)
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value[..., 0], pixels.astype(np.float32) / np.float32(255))


def test_a_dark_on_light_picture_of_the_models_size_is_inverted_and_not_moved():
    digit = drawn(5)
    upright, inverted = to_input(digit, DIGIT), to_input(ImageOps.invert(digit), DIGIT)
    np.testing.assert_array_equal(inverted, upright)
    in_color = to_input(ImageOps.invert(digit).convert("RGB"), DIGIT)
    np.testing.assert_array_equal(in_color, upright)


@pytest.mark.parametrize(
    ("rule", "polarity"), [("off", "light-on-dark"), ("auto", "any")], ids=["rule off", "any polarity"]
)
def test_no_picture_of_the_models_size_is_inverted_with_the_rule_off_or_for_any_polarity(rule, polarity):
    page = ImageOps.invert(drawn(5))
    facts = DIGIT.model_copy(update={"polarity": polarity})
    expected = np.asarray(page, np.float32)[..., None] / np.float32(255)
    np.testing.assert_array_equal(to_input(page, facts, rule), expected)


def test_a_light_thing_that_reaches_two_edges_is_no_paper():
    coat = Image.new("L", (28, 28), 0)
    coat.paste(200, (3, 0, 25, 28))  # from the upper to the lower edge, 44 of 108 pixels of the border
    np.testing.assert_array_equal(to_input(coat, DIGIT)[..., 0] * 255, np.asarray(coat))


@pytest.mark.parametrize("count", [1, 2, 108, 784])
def test_quantiles_are_numpys(count):
    levels = np.random.default_rng(count).integers(0, 256, count).astype(np.uint8)
    shares = (0.02, 0.25, 0.5, 0.98)
    assert quantiles(levels, *shares) == pytest.approx(np.quantile(levels, shares))


def test_no_drawn_digit_is_inverted():
    check_that_none_is_inverted("drawn", Path("data"))


@pytest.mark.mnist
def test_no_mnist_digit_is_inverted(mnist_root):
    check_that_none_is_inverted("mnist", mnist_root)


def check_that_none_is_inverted(name: str, root: Path) -> None:
    for image in load_split(name, "test", root).images[:2000, ..., 0]:
        assert np.array_equal(to_input(Image.fromarray(image), DIGIT)[..., 0], image / np.float32(255))


@pytest.mark.parametrize(("ground", "ink"), [(255, 0), (0, 255), (200, 120), (60, 150)])
def test_a_digit_is_shown_as_mnist_shows_it_whatever_its_polarity_size_and_place(ground, ink):
    value = to_input(written_on(ground, ink), DIGIT)
    assert value.shape == (28, 28, 1)
    assert likeness(value, np.asarray(drawn())) > 0.9
    assert value[0].max() == 0  # paper is exactly 0
    assert value.max() > 0.95


@pytest.mark.parametrize(("place", "is_dark"), [(0, True), (15, False), (25, True), (35, False)])
def test_strokes_wider_than_a_sixth_of_the_page_are_not_taken_for_paper(place, is_dark):
    page = Image.new("L", (240, 200), 235)
    ImageDraw.Draw(page).ellipse((30 + place, 20, 140 + place, 180), outline=20, width=44)
    value = to_input(page if is_dark else ImageOps.invert(page), DIGIT)[..., 0]
    assert value[14, 14] == 0  # the hole of the zero
    assert value[[5, 14, 14], [14, 9, 19]].min() > 0.9


@pytest.mark.parametrize(
    ("table", "pen", "is_dark"), [(60, 6, True), (60, 26, False), (120, 6, False), (120, 26, True)]
)
def test_a_sheet_on_a_table_is_not_taken_for_ink(table, pen, is_dark):
    page = Image.new("L", (320, 240), table)
    draw = ImageDraw.Draw(page)
    draw.rectangle((90, 20, 230, 220), fill=225)
    draw.ellipse((115, 50, 205, 190), outline=20, width=pen)
    page = page.rotate(8, Image.Resampling.BILINEAR, fillcolor=table)
    value = to_input(page if is_dark else ImageOps.invert(page), DIGIT)[..., 0]
    assert value[14, 14] == 0  # the hole of the zero
    assert value[[0, -1]].max() == 0
    assert value[[13, 14, 15]].max(axis=0)[[7, 8, 9, 18, 19, 20]].max() > 0.9


def test_a_digit_keeps_its_aspect_ratio_and_is_centered_by_mass():
    page = Image.new("L", (300, 200), 255)
    ImageDraw.Draw(page).line((40, 30, 40, 150), fill=0, width=10)
    value = to_input(page, DIGIT)[..., 0] > 0.5
    assert value.sum(axis=0).max() in {19, 20, 21}
    assert value.sum(axis=1).max() in {2, 3}
    rows, columns = np.nonzero(value)
    assert abs(rows.mean() - 14) < 0.75
    assert abs(columns.mean() - 14) < 0.75


def test_thin_strokes_are_thickened_to_two_pixels():
    page = Image.new("L", (900, 900), 255)
    ImageDraw.Draw(page).line((300, 100, 320, 800), fill=0, width=5)
    value = to_input(page, DIGIT)[..., 0]
    assert 1.8 < value[8:20].sum(axis=1).mean() < 3.2


def test_a_table_at_the_edge_is_not_ink():
    page = written_on(220, 30)
    ImageDraw.Draw(page).rectangle((310, 0, 320, 240), fill=50)
    assert likeness(to_input(page, DIGIT), np.asarray(drawn())) > 0.9


@pytest.mark.parametrize(
    ("size", "level"), [((8, 8), 128), ((64, 64), 0), ((5000, 9), 255), ((9, 5000), 128), ((640, 480), 255)]
)
def test_a_flat_page_is_an_empty_input(size, level):
    assert to_input(Image.new("L", size, level), DIGIT).max() == 0


def test_noise_on_a_falling_light_is_an_empty_input():
    rng = np.random.default_rng(0)
    light = np.linspace(90, 230, 640)[None] + np.linspace(-30, 20, 480)[:, None]
    page = np.clip(light + rng.normal(0, 6, light.shape), 0, 255).astype(np.uint8)
    assert to_input(Image.fromarray(page), DIGIT).max() == 0


@pytest.mark.parametrize(("side", "least"), [(8, 0.6), (12, 0.8), (20, 0.9)])
def test_a_digit_of_few_pixels_is_found(side, least):
    page = ImageOps.invert(drawn(size=112)).resize((side, side), Image.Resampling.BOX)
    assert likeness(to_input(page, DIGIT), np.asarray(drawn())) > least


@pytest.mark.parametrize("side", [29, 58, 116, 225, 900])  # 28 * (side / 28) is more than the side
def test_a_crop_that_rounding_makes_larger_than_the_picture_is_all_of_it(side):
    facts = Preprocessing(height=28, width=28, channels=1, placement="centre-crop")
    assert to_input(Image.new("L", (side, side + 7), 51), facts) == pytest.approx(0.2)


def test_off_is_a_plain_resize():
    page = written_on(200, 50, (280, 280))
    expected = np.asarray(page.resize((28, 28), Image.Resampling.BILINEAR), np.float32) / 255
    assert np.abs(to_input(page, DIGIT, "off")[..., 0] - expected).max() < 0.02


def test_a_model_of_any_polarity_gets_dark_ink_dark():
    facts = Preprocessing(height=28, width=28, polarity="any", placement="digit")
    dark, light = to_input(written_on(255, 0), facts), to_input(written_on(0, 255), facts)
    np.testing.assert_allclose(dark, 1 - light, atol=0.05)


def test_fit_shows_the_whole_picture_on_its_borders_color():
    facts = Preprocessing(height=32, width=32, channels=3, placement="fit")
    picture = Image.new("RGB", (120, 60), (200, 100, 50))
    ImageDraw.Draw(picture).rectangle((30, 20, 90, 40), fill=(0, 0, 255))
    value = to_input(picture, facts)
    assert value.shape == (32, 32, 3)
    np.testing.assert_allclose(value[0, 0] * 255, (200, 100, 50), atol=1)
    np.testing.assert_allclose(value[16, 16] * 255, (0, 0, 255), atol=1)


@pytest.mark.parametrize("placement", ["fit", "centre-crop"])
def test_a_light_on_dark_model_gets_dark_on_light_pictures_inverted(placement):
    facts = Preprocessing(height=20, width=20, polarity="light-on-dark", placement=placement)
    thing = Image.new("L", (60, 80), 240)
    ImageDraw.Draw(thing).rectangle((20, 30, 40, 50), fill=30)
    for picture in (thing, ImageOps.invert(thing)):
        value = to_input(picture, facts)[..., 0]
        assert value[0, 0] < 0.2
        assert value[10, 10] > 0.8


def test_center_crop_fills_the_frame():
    facts = Preprocessing(height=20, width=20, channels=1, placement="centre-crop")
    picture = Image.new("L", (120, 40), 255)
    picture.paste(100, (40, 0, 80, 40))
    value = to_input(picture, facts)[..., 0] * 255
    np.testing.assert_allclose(value[:, 1:-1], 100, atol=1)  # the outermost pixels see a little further


def test_a_center_crop_of_a_share_shows_what_a_network_trained_on_windows_sees():
    facts = Preprocessing(height=24, width=24, channels=3, placement="centre-crop", crop_share=24 / 32)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    np.testing.assert_array_equal(to_input(Image.fromarray(pixels), facts) * 255, pixels[4:28, 4:28])
    ramp = np.linspace(0, 255, 64).astype(np.uint8)[None, :, None].repeat(64, axis=0).repeat(3, axis=2)
    seen = to_input(Image.fromarray(ramp), facts)[12, :, 0] * 255
    np.testing.assert_allclose(seen[1:-1], ramp[0, 8:56, 0].reshape(24, 2).mean(axis=1)[1:-1], atol=1)


# arrays


def read_array(content: bytes, facts: Preprocessing) -> np.ndarray:
    return in_range(array_values(content, facts))


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_bytes_and_of_floats_are_the_same_input(order):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    expected = pixels.astype(np.float32)[..., None] / np.float32(255)
    for array in (pixels, pixels[..., None], expected, expected[..., 0], expected.astype(">f4")):
        value = read_array(to_npy(np.array(array, order=order)), DIGIT)
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((28, 28), np.uint8), "add the batch axis"),
        (np.zeros((28, 28, 1), np.uint8), "add the batch axis"),
        (np.zeros((2, 32, 32), np.uint8), r"shape \[2, 32, 32\]; expected \[N, 28, 28, 1\]"),
        (np.zeros((2, 28, 28, 3), np.uint8), "expected"),
        (np.zeros((0, 28, 28), np.uint8), "at least one image"),
        (np.zeros((), np.uint8), r"shape \[\]; expected"),
        (np.zeros((1, 28, 28)), "float64; expected uint8"),
        (np.zeros((1, 28, 28), [("a", "u1")]), "void8; expected uint8"),
        (np.full((1, 28, 28), np.nan, np.float32), "got nan"),
        (np.full((1, 28, 28), 1.01, np.float32), "0-1, got"),
        (np.full((1, 28, 28), -0.01, np.float32), "0-1, got"),
        (np.full((1, 28, 28), np.inf, np.float32), "got inf"),
    ],
)
def test_arrays_that_the_model_does_not_take_are_refused(array, message):
    with pytest.raises(ArrayError, match=message):
        read_array(to_npy(array), DIGIT)


def test_threads_may_read_arrays_at_the_same_time():
    """With the interpreter made to change threads while a header is parsed: see arrays.HEADER_LOCK."""
    content, threshold = to_npy(np.zeros((1, 28, 28), np.uint8)), gc.get_threshold()

    def change_threads(*_: object) -> None:
        time.sleep(0)

    gc.callbacks.append(change_threads)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as threads:
            read = [
                threads.submit(lambda: {read_array(content, DIGIT).shape for _ in range(3000)})
                for _ in "abcd"
            ]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(change_threads)
    assert [found.result() for found in read] == 4 * [{(1, 28, 28, 1)}]


def test_arrays_of_objects_are_never_unpickled():
    with pytest.raises(ArrayError, match="object"):
        read_array(to_npy(np.array([print], object)), DIGIT)


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", b"\x93NUMPY\x09\x00 ", b"\x93NUMPY\x01\x00\x02\x00{]", b"PK"]
)
def test_what_is_no_npy_file_is_refused(content):
    with pytest.raises(ArrayError, match=r"expected an \.npy file"):
        read_array(content, DIGIT)


@pytest.mark.parametrize("count", [-1, 2, 10**6, 10**30])
def test_a_body_that_is_not_what_its_header_claims_is_refused(count):
    content = to_npy(np.zeros((1, 28, 28), np.uint8))
    header = content.replace(b"(1, 28, 28)", f"({count}, 28, 28)".encode())
    length = header.index(b"\n") + 1 - 10
    with pytest.raises(ArrayError, match=r"takes|at least one"):
        read_array(header[:8] + struct.pack("<H", length) + header[10:], DIGIT)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_line_of_single_dark_pixels_is_a_picture_like_any_other(step):
    """Most of such a stroke's neighbourhood is paper, so its percentile of contrast may be 0."""
    page = np.full((60, 60), 255, np.uint8)
    page[12:48:step, 30] = 0
    found = to_input(Image.fromarray(page), DIGIT)
    assert np.isfinite(found).all()
    assert 0 <= found.min() <= found.max() <= 1
