"""Preprocessing in the browser: what `export.contract` makes of the same files."""

import base64
import json
from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page

from browser.runtime import HERE
from export.contract.manifest import Preprocessing, newest_version
from service.inference.model_input import decode_image
from tests.browser.conftest import serve_files
from tests.browser.pictures import DIGIT, FIT, cases
from tests.support.paths import MODELS
from tests.support.small_pictures import to_png

STEREO = Preprocessing(height=32, width=32, channels=2, placement="centre-crop", crop_share=2 / 3)
MAX_PIXELS = 50_000_000
LABELED = {DIGIT: "capsnet-mnist", FIT: "capsnet-multimnist"}  # models of these rules
TO_LEVELS = """async ([files, facts]) => {
    const { readPicture } = await import("/pictures.js");
    const { viewsToInput } = await import("/preprocess.js");
    const bytes = files.map((file) => Uint8Array.from(atob(file), (letter) => letter.charCodeAt(0)));
    const pictures = await Promise.all(bytes.map((one) => readPicture(new Blob([one]))));
    return Array.from(viewsToInput(pictures, facts), (value) => Math.round(value * 255));
}"""


@pytest.fixture(scope="module")
def page(browser) -> Page:
    """A page that may import the modules of the engine; they need nothing from npm."""
    with serve_files(HERE / "engine") as address:
        page = browser.new_page()
        page.goto(f"{address}/resize.js")
        yield page
        page.close()


def levels(page: Page, files: list[bytes], facts: Preprocessing) -> NDArray[np.float32]:
    """The input that the browser makes, [H, W, C], 0 to 255."""
    given = [[base64.b64encode(file).decode() for file in files], json.loads(facts.model_dump_json())]
    found = page.evaluate(TO_LEVELS, given)
    return np.array(found, np.float32).reshape(facts.height, facts.width, facts.channels)


def expected_levels(files: list[bytes], facts: Preprocessing) -> NDArray[np.float32]:
    return np.rint(decode_image(files, facts, "auto", MAX_PIXELS) * 255)


@cache
def encoder(name: str) -> ort.InferenceSession:
    return ort.InferenceSession(newest_version(MODELS / name) / "encoder.onnx")


def label(pixels: NDArray[np.float32], facts: Preprocessing) -> int:
    """The class that the model of such pictures names."""
    [probabilities] = encoder(LABELED[facts]).run(["probabilities"], {"pixels": pixels[None] / 255})
    return int(probabilities[0].argmax())


REDUCE = """async ([values, width, height, factor]) => {
    const { reduce } = await import("/resize.js");
    const plane = { width, height, channels: 1, values: Uint8Array.from(values) };
    return Array.from(reduce(plane, [factor, factor], [0, 0, width, height]).values);
}"""


@pytest.mark.parametrize("factor", [2, 3, 5, 7, 12])
def test_blocks_of_pixels_become_the_levels_that_pillow_gives_them(page, factor):
    pixels = np.random.default_rng(factor).integers(0, 256, (61, 95), np.uint8)  # blocks at the edge are cut
    found = page.evaluate(REDUCE, [pixels.ravel().tolist(), 95, 61, factor])
    assert found == np.asarray(Image.fromarray(pixels).reduce(factor)).ravel().tolist()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
def test_pictures_that_are_fitted_are_the_same_and_digits_to_a_level_with_the_same_labels(page, every):
    pictures = cases()
    assert len(pictures) == 200
    labeled = different = 0
    for case in pictures[::every]:
        expected, found = (
            expected_levels([case.content], case.facts),
            levels(page, [case.content], case.facts),
        )
        difference = np.abs(found - expected)
        assert difference.max() <= (1 if case.facts.placement == "digit" else 0), case.name
        different += int((difference > 0).sum())
        if case.facts in LABELED:
            assert label(found, case.facts) == label(expected, case.facts), case.name
            labeled += 1
    assert labeled > 150 // every
    assert different <= 3  # as docs/serving/playground.md says


def test_the_views_of_a_pair_become_the_channels_of_one_input(page):
    files = [(MODELS.parent / "docs" / name).read_bytes() for name in ("left.png", "right.png")]
    np.testing.assert_array_equal(levels(page, files, STEREO), expected_levels(files, STEREO))


@pytest.mark.parametrize("seed", range(5))
def test_pictures_of_any_shape_are_fitted_as_pillow_fits_them(page, seed):
    rng = np.random.default_rng(seed)
    height, width = rng.integers(20, 900, 2)
    content = to_png(rng.integers(0, 256, (height, width, 3), np.uint8))
    np.testing.assert_array_equal(levels(page, [content], FIT), expected_levels([content], FIT))


@pytest.mark.parametrize("side", [40, 60, 61])
def test_a_symmetric_digit_lies_where_the_service_puts_it(page, side):
    """Its center of mass is where two places are as good."""
    drawn = Image.new("L", (side, side), 255)
    ImageDraw.Draw(drawn).ellipse((side // 4, side // 8, 3 * side // 4, 7 * side // 8), outline=0, width=3)
    content = to_png(np.asarray(drawn))
    assert np.abs(levels(page, [content], DIGIT) - expected_levels([content], DIGIT)).max() <= 1


def test_pixels_exactly_at_the_level_of_ink_are_none_as_for_the_service(page):
    """These 103 of 255 are: above 0.4 of the stroke's contrast in float64, but not in float32."""
    drawn = Image.new("L", (120, 100), 9)
    ImageDraw.Draw(drawn).rectangle((60, 20, 80, 80), fill=103)
    ImageDraw.Draw(drawn).rectangle((50, 20, 60, 80), fill=244)
    content = to_png(np.asarray(drawn))
    assert np.abs(levels(page, [content], DIGIT) - expected_levels([content], DIGIT)).max() <= 1


def test_files_that_are_no_pictures_and_pictures_of_other_sizes_are_told_in_words(page):
    with pytest.raises(PlaywrightError, match="this browser finds no picture"):
        levels(page, [b"no picture"], DIGIT)
    with pytest.raises(PlaywrightError, match="picture is 9x7; expected at least 8x8"):
        levels(page, [to_png(np.zeros((7, 9), np.uint8))], DIGIT)
    pair = [to_png(np.zeros((9, 9 + index), np.uint8)) for index in range(2)]
    with pytest.raises(PlaywrightError, match="the right view is 10x9, and the left one before it 9x9"):
        levels(page, pair, STEREO)
