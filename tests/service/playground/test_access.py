"""The page for everybody: on a phone, with the keyboard alone, with a screen reader, light and dark."""

from pathlib import Path

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


def digit_files(folder: Path, count: int) -> list[Path]:
    """The digits from 0 on, each with its label in its name."""
    files = []
    for index, drawn in enumerate(draw_digits(np.arange(count), np.random.default_rng(1))):
        files.append(folder / f"{index}_.png")
        files[-1].write_bytes(to_png(drawn))
    return files


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
    page.set_input_files("#score-files", digit_files(tmp_path, 4))
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


def test_on_a_phone_a_table_of_all_classes_does_not_widen_the_page(open_page, address, tmp_path):
    page = open_page(f"{address}/", **PHONE)
    page.wait_for_selector(".sample")
    page.locator("#tab-score").tap()
    page.set_input_files("#score-files", digit_files(tmp_path, 10))
    expect(page.locator("#score-said")).to_contain_text("10 of 10")
    expect(page.locator("#confusion")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize(("width", "height"), [(844, 390), (640, 400)])
def test_the_whole_pad_fits_into_a_low_window(open_page, address, width, height):
    page = open_page(f"{address}/", viewport={"width": width, "height": height})
    box = page.locator("#pad").bounding_box()
    assert box["height"] == pytest.approx(box["width"], abs=1)
    assert 240 <= box["height"] <= height


def test_what_the_page_says_is_in_a_region_that_was_there_before(open_page, address, tmp_path):
    page = open_page(f"{address}/", may_complain=True)
    spoken = page.locator("#notice-spoken")
    expect(spoken).to_be_empty()
    assert spoken.evaluate("part => part.checkVisibility()")
    (tmp_path / "no.png").write_text("no picture")
    page.set_input_files("#file", tmp_path / "no.png")
    expect(spoken).to_contain_text("expected a PNG")
    page.click("#notice-close")
    expect(spoken).to_be_empty()


def test_a_slider_is_not_named_by_its_value(open_page, address):
    page = open_page(f"{address}/")
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#azimuth")).to_have_accessible_name("Azimuth")
    expect(page.locator("#elevation")).to_have_accessible_name("Elevation")


def test_who_wants_more_contrast_gets_lines_that_can_be_seen(open_page, address):
    page = open_page(f"{address}/", contrast="more")
    assert color(page, ".card", "border-top-color") == "rgb(125, 122, 112)"


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
    page.keyboard.press("Control+ArrowLeft")  # the browser's own, as is Alt and an arrow
    assert focused(page) == "tab-score"


@pytest.mark.parametrize("size", [(1280, 720), (390, 800)])
def test_a_notice_covers_nothing_that_cannot_be_scrolled_away_from_it(open_page, address, size):
    width, height = size
    page = open_page(f"{address}/", viewport={"width": width, "height": height}, may_complain=True)
    no_picture = {
        "name": f"{'long name, ' * 20}.png",
        "mimeType": "image/png",
        "buffer": b"no picture, " * 20,
    }
    page.set_input_files("#file", no_picture)
    expect(page.locator("#notice")).to_be_in_viewport(ratio=1)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.locator("#notice")).to_be_in_viewport(ratio=1)
    share, notice = (page.locator(place).bounding_box() for place in ("#share", "#notice"))
    assert share["y"] + share["height"] <= notice["y"]


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


def test_the_numbers_beside_sliders_are_not_read_at_each_answer(page):
    assert page.locator("#sliders").locator("output, [role=status], [aria-live]").count() == 0


def test_a_button_that_is_of_no_more_use_keeps_the_focus(page):
    for name in ("undo", "clear"):
        page.click('[aria-label="Sample: 7"]')
        answer(page)
        while page.locator(f"#{name}").is_enabled():
            page.locator(f"#{name}").focus()
            page.keyboard.press("Enter")
        assert focused(page) == name
    page.click("#tab-tour")
    expect(page.locator("#tour-next")).to_be_enabled()
    for name, place in (("tour-next", 5), ("tour-back", 1)):
        page.locator(f"#{name}").focus()
        while page.locator(f"#{name}").is_enabled():
            page.keyboard.press("Enter")
        assert focused(page) == name
        page.keyboard.press("Enter")
        expect(page.locator("#tour-place")).to_have_text(f"Step {place} of 5")


def color(page: Page, selector: str, name: str = "background-color") -> str:
    return page.locator(selector).first.evaluate("(part, name) => getComputedStyle(part)[name]", name)


def test_forced_colors_leave_what_is_drawn_with_backgrounds(open_page, address):
    page = open_page(f"{address}/", forced_colors="active")
    page.click('[aria-label="Sample: 7"]')
    answer(page)
    field = color(page, "body")
    assert field not in {
        color(page, ".bar .fill"),
        color(page, ".bar.named .fill"),
        color(page, ".threshold"),
    }
    page.click("#explain summary")
    expect(page.locator("#explain-steps input")).to_have_count(3)
    assert color(page, ".explain-side .fill") != field
    assert color(page, ".bar .track", "border-style") == "solid"
    assert color(page, "#pad", "outline-style") == "solid"
    for chosen, other in (
        (".model:has(:checked)", ".model:not(:has(:checked))"),
        (".bar:has(:checked)", ".bar:not(:has(:checked))"),
        ("[role=tab][aria-selected=true]", "[role=tab][aria-selected=false]"),
    ):
        kinds = ("background-color", "outline-style", "border-width")
        assert [color(page, chosen, kind) for kind in kinds] != [color(page, other, kind) for kind in kinds]


def expect_repainted(page: Page, *canvases: str) -> None:
    """Of a page in light colors, once the system is dark."""
    drawn = {canvas: picture(page, canvas) for canvas in canvases}
    page.emulate_media(color_scheme="dark")
    for canvas, before in drawn.items():
        page.wait_for_function(CHANGED, arg=[canvas, before])
    page.emulate_media(color_scheme="light")


def test_what_is_drawn_follows_the_system_from_light_to_dark(open_page, address):
    page = open_page(f"{address}/", color_scheme="light")
    page.wait_for_selector(".sample")
    expect_repainted(page, ".sample:first-child canvas")
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    page.click("#explain summary")
    expect(page.locator("#explain-votes")).to_be_visible()
    expect_repainted(page, "#matrix", "#explain-votes")
    page.goto(f"{address}/#tab=tour&step=3")
    expect(page.locator(".curve")).to_be_visible()
    expect_repainted(page, ".curve")


CONTRASTS = """async () => {
    const { showConfusion } = await import("/playground/scripts/confusion.js");
    const { drawMatrix } = await import("/playground/scripts/matrix.js");
    showConfusion([["1", "1"], ["1", "2"]].map(([truth, label]) => ({ truth, label })), ["1", "2"]);
    const matrix = document.querySelector("#matrix");
    drawMatrix(matrix, [1, -1], 2);
    const drawing = new OffscreenCanvas(240, 240).getContext("2d");
    const luminance = (color, picture, x = 0) => {
        drawing.fillStyle = color;
        drawing.fillRect(0, 0, 240, 240);
        if (picture) drawing.drawImage(picture, 0, 0);
        const linear = (level) => (level <= 0.04045 ? level / 12.92 : ((level + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = [...drawing.getImageData(x, 5, 1, 1).data].map((level) => linear(level / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const style = (name) => getComputedStyle(document.querySelector(name));
    const pairs = [".right", ".wrong"].map((kind) => style(`#confusion ${kind}`))
        .map(({ color, backgroundColor }) => [luminance(color), luminance(backgroundColor)]);
    const card = style(".card").backgroundColor;
    for (const x of [5, 125]) pairs.push([luminance(style("#matrix").color), luminance(card, matrix, x)]);
    return pairs.map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_on_colored_cells_can_be_read(open_page, address, scheme):
    page = open_page(f"{address}/", color_scheme=scheme)
    assert min(page.evaluate(CONTRASTS)) >= 4.5


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
