"""What can be taken away: the sheet, a link, and the same as a command or a program."""

import base64
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.service.playground.test_explore import CHANGED, answer, choose_model, picture, sums
from tests.support.pen import draw


@pytest.fixture
def copying(open_page, address) -> Page:
    """The page, which may use the clipboard."""
    page = open_page(f"{address}/", permissions=["clipboard-read", "clipboard-write"])
    page.wait_for_selector(".sample")
    return page


def copied(page: Page, button: str) -> str:
    page.locator("#copied").evaluate("said => { said.textContent = ''; }")
    page.click(button)
    expect(page.locator("#copied")).to_contain_text("opied")
    return page.evaluate("navigator.clipboard.readText()")


def move(page: Page, dimension: int, presses: int) -> None:
    before = picture(page, "#decoded")
    page.get_by_label(f"Dimension {dimension}", exact=True).focus()
    for _ in range(presses):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    expect(page.locator(".slider.moved").nth(0)).to_be_visible()


def run_shell(command: str, folder: Path) -> str:
    ran = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout


def test_the_whole_sheet_has_a_row_for_each_dimension_and_is_saved_with_its_labels(page):
    page.click('[aria-label="Sample: 4"]')
    answer(page)
    page.click("#sheet")
    expect(page.locator("#sheet-dialog")).to_be_visible()
    with page.expect_download() as download:
        page.click("#sheet-save")
    assert download.value.suggested_filename == "capsnet-mnist-4.png"
    with Image.open(download.value.path()) as sheet:
        levels = np.asarray(sheet.convert("L"))
    assert levels.shape == (30 + 16 * 58, 118 + 11 * 58)
    for row in range(16):
        cells = levels[30 + 58 * row : 88 + 58 * row]
        assert (cells[:, :118] < 128).any(), "a label"
        assert (cells[:, 118 + 5 * 58 : 118 + 5 * 58 + 56] > 200).any(), "a digit"
    page.click("#sheet-close")
    expect(page.locator("#sheet-dialog")).to_be_hidden()


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"])
def test_a_link_brings_back_model_image_and_sliders(copying, open_page, model):
    choose_model(copying, model)
    if model == "matrix-capsnet-toys":
        copying.check('#toys input[value="airplane"]')
        expect(copying.locator("#best")).to_have_text("airplane")
    else:
        copying.locator(".sample").nth(3).click()
        answer(copying)
    expect(copying.locator("#capsule")).to_be_visible()
    copying.wait_for_timeout(200)
    move(copying, 4, 12)
    link = copied(copying, "#share")
    restored = open_page(link)
    expect(restored.locator(".slider.moved")).to_have_count(1)
    assert restored.is_checked(f'input[value="{model}"]')
    assert restored.get_by_label("Dimension 4", exact=True).input_value() == "12"
    assert restored.inner_text("#best") == copying.inner_text("#best")
    expect(restored.locator("#reset")).to_be_enabled()
    assert sums(restored, "#decoded") == pytest.approx(sums(copying, "#decoded"), rel=0.03)


def test_a_link_brings_back_an_opened_image_as_the_network_saw_it(copying, open_page):
    copying.set_input_files("#file", "docs/seven.jpg")
    assert answer(copying) == "7"
    restored = open_page(copied(copying, "#share"))
    assert answer(restored) == "7"
    assert picture(restored, "#seen") == picture(copying, "#seen")


def test_a_damaged_link_opens_the_page(open_page, address):
    page = open_page(f"{address}/#see=%%%")
    page.click('[aria-label="Sample: 1"]')
    assert answer(page) == "1"


def test_curl_and_python_give_the_answer_on_the_screen(copying, tmp_path):
    draw(copying, 5)
    named = answer(copying)
    assert f'"label":"{named}"' in run_shell(copied(copying, "#copy-curl"), tmp_path)
    program = copied(copying, "#copy-python")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0].startswith(f"{named} 0.")


def test_curl_and_python_decode_a_moved_capsule(copying, tmp_path):
    copying.click('[aria-label="Sample: 5"]')
    answer(copying)
    copying.wait_for_timeout(200)
    move(copying, 2, 20)
    shown = copying.locator("#decoded").evaluate("canvas => canvas.toDataURL().split(',')[1]")
    expected = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown))).convert("L"), int)
    run_shell(copied(copying, "#copy-curl"), tmp_path)
    decoded = np.asarray(Image.open(tmp_path / "capsule.png"), int)
    assert np.abs(decoded - expected).max() <= 2
    (tmp_path / "capsule.png").unlink()
    program = copied(copying, "#copy-python")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert np.abs(np.asarray(Image.open(tmp_path / "capsule.png"), int) - expected).max() <= 2


@pytest.mark.parametrize("model", ["capsnet-multimnist", "matrix-capsnet-toys"])
def test_curl_and_python_take_two_digits_apart_and_send_two_views(copying, tmp_path, model):
    choose_model(copying, model)
    if model == "capsnet-multimnist":
        copying.click('[aria-label="Sample: 1 and 7"]')
    named = answer(copying).split(" + ")
    output = run_shell(copied(copying, "#copy-curl"), tmp_path)
    assert all(f'"label":"{label}"' in output for label in named)
    program = copied(copying, "#copy-python")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0].split()[0] in named
