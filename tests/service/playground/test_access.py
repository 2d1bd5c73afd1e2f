"""The page for everybody: on a phone, with the keyboard alone, with a screen reader, light and dark."""

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.service.playground.test_explore import CHANGED, answer, choose_model, picture
from tests.support.accessibility import serious_findings
from tests.support.small_pictures import to_png
from training.data.synthetic.drawn_digits import draw_digits

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')")


def tab_to(page: Page, name: str, key: str = "Tab") -> None:
    """Press Tab, or Shift+Tab, until the element of this id or label has the focus."""
    for _ in range(80):
        if focused(page) == name:
            return
        page.keyboard.press(key)
    pytest.fail(f"Tab does not lead to {name}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_page, address, scheme, tmp_path):
    page = open_page(f"{address}/", color_scheme=scheme, reduced_motion="reduce")
    page.wait_for_selector(".sample")
    assert not serious_findings(page), "empty"
    page.click('[aria-label="Sample: 7"]')
    answer(page)
    assert not serious_findings(page), "an answer"
    page.click("#sheet")
    expect(page.locator("#sheet-dialog")).to_be_visible()
    assert not serious_findings(page), "the sheet"
    page.click("#sheet-close")
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#matrix")).to_be_visible()
    assert not serious_findings(page), "toys"
    choose_model(page, "capsnet-mnist")
    page.click("#tab-score")
    files = []
    for index, drawn in enumerate(draw_digits(np.arange(4), np.random.default_rng(1))):
        files.append(tmp_path / f"{index}_.png")
        files[-1].write_bytes(to_png(drawn))
    page.set_input_files("#score-files", files)
    expect(page.locator("#score-said")).to_contain_text("4 of 4")
    assert not serious_findings(page), "scores"


@pytest.mark.parametrize("model", ["capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"])
def test_on_a_phone_nothing_is_cut_off_and_a_finger_draws(open_page, address, model):
    page = open_page(f"{address}/", **PHONE)
    choose_model(page, model)
    if model != "matrix-capsnet-toys":
        page.wait_for_selector(".sample")
        page.locator(".sample").nth(2).tap()
        answer(page)
    expect(page.locator("#capsule")).to_be_visible()
    for tab in ("#tab-score", "#tab-explore"):
        page.locator(tab).tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_keyboard_alone_draws_moves_a_capsule_and_changes_views(page):
    tab_to(page, "pad")
    for _ in range(8):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    for _ in range(16):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert answer(page) == "1"
    before = picture(page, "#decoded")
    tab_to(page, "Dimension 2")
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    tab_to(page, "reset", "Shift+Tab")
    page.keyboard.press("Enter")
    assert picture(page, "#decoded") == before
    tab_to(page, "tab-explore", "Shift+Tab")
    page.keyboard.press("ArrowLeft")
    assert focused(page) == "tab-score"
    expect(page.locator("#score")).to_be_visible()


def test_a_screen_reader_hears_the_answer_and_what_a_slider_stands_for(page):
    page.click('[aria-label="Sample: 3"]')
    answer(page)
    assert page.inner_text("#spoken").startswith("It sees 3, probability 0.9")
    slider = page.get_by_role("slider", name="Dimension 0", exact=True)
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext").endswith("moved by 0.01")
    bar = page.get_by_role("radio", name="3: 0.9")
    assert bar.is_checked()


def test_the_skip_link_keeps_the_address(open_page, address):
    page = open_page(f"{address}/#tab=score", wait_for=".skip")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    assert page.url.endswith("#tab=score")


def test_keys_draw_a_new_stroke_after_undo_and_leave_the_browsers_own_alone(page):
    tab_to(page, "pad")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Backspace")
    expect(page.locator("#undo")).to_be_disabled()
    page.keyboard.press("Space")
    for _ in range(8):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#undo")).to_be_enabled()
    page.keyboard.press("Control+Backspace")
    expect(page.locator("#undo")).to_be_enabled()
    page.keyboard.press("Space")
    page.keyboard.down("Space")
    page.keyboard.down("Space")  # a key that is held repeats
    page.keyboard.up("Space")
    page.keyboard.press("Space")
    for _ in range(2):
        page.click("#undo")
    expect(page.locator("#undo")).to_be_disabled()


def test_the_mouse_takes_the_pen_from_the_keyboard(page):
    tab_to(page, "pad")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    box = page.locator("#pad").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 60)
    for _ in range(2):  # strokes
        expect(page.locator("#undo")).to_be_enabled()
        page.click("#undo")
    expect(page.locator("#undo")).to_be_disabled()
