"""What can be taken away: the sheet, a link, and the same as a command or a program."""

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect

from tests.service.playground.test_explore import CHANGED, Held, answer, choose_model, picture
from tests.support.live_service import live_service, settings_for
from tests.support.pen import draw
from tests.support.small_pictures import to_png
from tests.support.tiny_bundle import write_bundle

UNUSUAL = ("it's $(id)", '<b onclick="x">"&amp;"</b>', "ü, 1; \\n")  # names of classes
IS_PICTURE = "([canvas, picture]) => document.querySelector(canvas).toDataURL() === picture"
CLIPBOARD = ["clipboard-read", "clipboard-write"]


@pytest.fixture
def copying(open_page, address) -> Page:
    """The page, which may use the clipboard."""
    page = open_page(f"{address}/", permissions=CLIPBOARD)
    page.wait_for_selector(".sample")
    return page


def copied(page: Page, button: str) -> str:
    """What a button copies, once the last stroke is answered; before that, only an earlier one may be."""
    for _ in range(100):
        page.locator("#copied").evaluate("said => { said.textContent = ''; }")
        page.click(button)
        expect(page.locator("#copied")).not_to_be_empty()
        if page.inner_text("#copied") != "There is nothing to copy yet":
            break
        page.wait_for_timeout(100)
    expect(page.locator("#copied")).to_contain_text("opied")
    return page.evaluate("navigator.clipboard.readText()")


def move(page: Page, dimension: int, presses: int) -> None:
    before = picture(page, "#decoded")
    page.get_by_label(f"Dimension {dimension}", exact=True).focus()
    for _ in range(presses):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".slider.moved")).not_to_have_count(0)
    page.wait_for_function(CHANGED, arg=["#decoded", before])


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
    assert download.value.suggested_filename == "capsnet-digits-4.png"
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
        expect(copying.locator("#spoken")).to_contain_text("It sees airplane")
    else:
        copying.locator(".sample").nth(3).click()
        answer(copying)
    move(copying, 4, 12)
    link = copied(copying, "#share")
    restored = open_page(link)
    expect(restored.locator(".slider.moved")).to_have_count(1)
    assert restored.is_checked(f'input[value="{model}"]')
    assert restored.get_by_label("Dimension 4", exact=True).input_value() == "12"
    assert restored.inner_text("#best") == copying.inner_text("#best")
    expect(restored.locator("#reset")).to_be_enabled()
    assert picture(restored, "#seen") == picture(copying, "#seen")
    moved = picture(copying, "#decoded")
    restored.wait_for_function(IS_PICTURE, arg=["#decoded", moved])


@pytest.mark.long
def test_a_link_brings_back_a_drawing_that_leaves_the_area(copying, open_page):
    box = copying.locator("#pad").bounding_box()
    copying.mouse.move(box["x"] + 0.503 * box["width"], box["y"] + 0.307 * box["height"])
    copying.mouse.down()
    for down in (0.611, 0.857, 1.037):
        copying.mouse.move(box["x"] + 0.487 * box["width"], box["y"] + down * box["height"])
    copying.mouse.up()
    assert answer(copying) == "1"
    restored = open_page(copied(copying, "#share"))
    assert answer(restored) == "1"
    assert picture(restored, "#seen") == picture(copying, "#seen")


def test_a_link_brings_back_an_opened_image_as_the_network_saw_it(copying, open_page):
    copying.set_input_files("#file", "docs/seven.jpg")
    assert answer(copying) == "7"
    restored = open_page(copied(copying, "#share"))
    assert answer(restored) == "7"
    assert picture(restored, "#seen") == picture(copying, "#seen")


def test_a_link_is_not_copied_without_the_image_that_is_shown(open_page, address):
    page = open_page(f"{address}/", permissions=CLIPBOARD, may_complain=True)
    page.wait_for_selector(".sample")
    held = Held("**/classify*")
    held.hold(page)
    page.set_input_files("#file", "docs/seven.jpg")
    expect(page.locator("#clear")).to_have_attribute("aria-disabled", "false")
    page.click("#share")
    expect(page.locator("#copied")).to_have_text("There is nothing to copy yet")
    held.release()
    assert answer(page) == "7"
    assert "see=" in copied(page, "#share")


def test_a_link_is_left_behind_by_what_is_drawn_later(copying, open_page):
    copying.set_input_files("#file", "docs/seven.jpg")
    assert answer(copying) == "7"
    restored = open_page(copied(copying, "#share"))
    assert answer(restored) == "7"
    assert "see=" in restored.url
    restored.click('[aria-label="Sample: 4"]')
    expect(restored.locator("#best")).to_have_text("4")
    assert "see=" not in restored.url


CHANGES = {  # of what a link brought
    "reset": lambda page: page.click("#reset"),
    "a double click on a slider": lambda page: page.get_by_label("Dimension 4", exact=True).dispatch_event(
        "dblclick"
    ),
    "another class": lambda page: page.locator("#bars input").last.check(force=True),
}


def test_a_link_is_left_behind_by_what_is_changed_of_its_capsule(copying, open_page):
    copying.set_input_files("#file", "docs/seven.jpg")
    assert answer(copying) == "7"
    move(copying, 4, 12)
    link = copied(copying, "#share")
    for change in CHANGES.values():
        restored = open_page(link)
        expect(restored.locator("#reset")).to_be_enabled()
        restored.locator("#sliders .value").first.dblclick()  # changes nothing
        assert "see=" in restored.url
        change(restored)
        restored.wait_for_function("() => !location.hash.includes('see=')")


@pytest.mark.long
def test_a_reset_of_an_unmoved_capsule_keeps_the_link(copying, open_page):
    copying.set_input_files("#file", "docs/seven.jpg")
    assert answer(copying) == "7"
    restored = open_page(copied(copying, "#share"))
    assert answer(restored) == "7"
    restored.click("#reset", force=True)
    assert "see=" in restored.url


@pytest.mark.long
def test_a_link_to_a_blank_image_opens_a_page_that_works(copying, open_page, tmp_path):
    (tmp_path / "blank.png").write_bytes(to_png(np.zeros((28, 28), np.uint8)))
    copying.set_input_files("#file", tmp_path / "blank.png")
    assert answer(copying) == "—"
    restored = open_page(copied(copying, "#share"))
    assert answer(restored) == "—"
    restored.click('[aria-label="Sample: 4"]')
    expect(restored.locator("#best")).to_have_text("4")
    expect(restored.locator("#capsule")).to_be_visible()


REFUSAL = {
    "type": "/problems/unsupported-image",
    "title": "Unsupported",
    "status": 415,
    "detail": "Not this one.",
}
HANDLERS = {  # of the question about a link's image
    "refused": lambda route: route.fulfill(status=415, json=REFUSAL),
    "never answered": lambda route: None,
}


@pytest.mark.long
@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_the_sliders_of_a_link_whose_image_got_no_answer_are_not_those_of_the_next(
    copying, open_page, address, handler
):
    copying.click('[aria-label="Sample: 4"]')
    answer(copying)
    move(copying, 4, 12)
    link = copied(copying, "#share")
    page = open_page(f"{address}/", may_complain=True)
    page.wait_for_selector(".sample")
    page.route("**/classify*", handler)
    with page.expect_request("**/classify*"):
        page.goto(link)
    if handler is HANDLERS["refused"]:
        expect(page.locator("#notice")).to_contain_text("Not this one.")
    page.unroute("**/classify*")
    page.click('[aria-label="Sample: 4"]')
    assert answer(page) == "4"
    page.wait_for_timeout(1500)  # the link's sliders would move soon after the answer
    expect(page.locator("#reset")).to_be_disabled()
    expect(page.locator(".slider.moved")).to_have_count(0)


def test_a_link_made_in_the_tour_leads_to_its_step_and_keeps_the_image(copying, open_page):
    copying.click('[aria-label="Sample: 4"]')
    answer(copying)
    copying.click("#tab-tour")
    expect(copying.locator("#tour-figure canvas").first).to_be_visible()
    copying.click("#tour-next")
    copying.click("#tour-next")
    expect(copying.locator("#tour-place")).to_have_text("Step 3 of 5")
    expect(copying.locator("#copy-curl")).to_be_hidden()
    restored = open_page(copied(copying, "#share"), wait_for="#tour-figure canvas")
    expect(restored.locator("#tour-place")).to_have_text("Step 3 of 5")
    expect(restored.locator("#tour-title")).to_have_text("Squashing turns a length into a probability")
    expect(restored.locator("#tab-tour")).to_have_attribute("aria-selected", "true")
    restored.click("#tab-explore")
    assert answer(restored) == "4"


@pytest.mark.long
def test_a_link_made_among_scored_files_leads_there_with_the_model(copying, open_page):
    choose_model(copying, "capsnet-multimnist")
    expect(copying.locator("#pad-hint")).to_have_text("Draw two digits over one another")
    copying.click("#tab-score")
    restored = open_page(copied(copying, "#share"), wait_for="#score .drop")
    expect(restored.locator("#score-model")).to_contain_text("capsnet-multimnist")
    expect(restored.locator("#explore")).to_be_hidden()


def test_the_address_of_the_page_names_the_view_and_the_step(page):
    page.click("#tab-tour")
    expect(page.locator("#tour-figure canvas").first).to_be_visible()
    page.click("#tour-next")
    expect(page).to_have_url(re.compile("#tab=tour&step=2$"))
    page.reload()
    expect(page.locator("#tour-place")).to_have_text("Step 2 of 5")
    expect(page.locator("#tour-figure canvas").first).to_be_visible()
    page.click("#tab-explore")
    expect(page).to_have_url(re.compile("/$"))
    page.click("#tab-score")
    expect(page).to_have_url(re.compile("#tab=score$"))
    page.reload()
    expect(page.locator("#score")).to_be_visible()


@pytest.mark.long
@pytest.mark.parametrize(("step", "place"), [("0", 1), ("99", 5), ("x", 1), ("2.5", 2)])
def test_a_step_that_the_tour_does_not_have_leads_to_the_nearest(open_page, address, step, place):
    page = open_page(f"{address}/#tab=tour&step={step}", wait_for="#tour-figure canvas")
    expect(page.locator("#tour-place")).to_have_text(f"Step {place} of 5")


def test_a_link_pasted_into_the_address_bar_of_the_open_page_is_followed(page, address):
    page.goto(f"{address}/#tab=score")
    expect(page.locator("#score")).to_be_visible()
    page.goto(f"{address}/#tab=nothing")
    expect(page.locator("#explore")).to_be_visible()
    expect(page.locator("#score")).to_be_hidden()


@pytest.mark.long
def test_a_link_copied_before_the_drawing_is_answered_has_the_drawing_alone(copying, open_page):
    copying.click('[aria-label="Sample: 1"]')
    answer(copying)
    held = Held("**/classify*")
    held.hold(copying)
    copying.click('[aria-label="Sample: 7"]')
    restored = open_page(copied(copying, "#share"))
    held.release()
    assert answer(restored) == "7"
    expect(restored.locator("#objects")).to_have_text("of the 7")


@pytest.fixture
def moved_link(copying) -> str:
    """A link to a four with a slider at one end."""
    copying.click('[aria-label="Sample: 4"]')
    answer(copying)
    copying.get_by_label("Dimension 4", exact=True).fill("30")
    return copied(copying, "#share")


def hold_pictures(held: list[Route]) -> Callable[[Page], None]:
    """Lets the requests for single pictures wait, as that of a link's capsule."""

    def meet(route: Route) -> None:
        if "sweep" in route.request.post_data_json:
            route.continue_()
        else:
            held.append(route)

    return lambda page: page.route("**/reconstruct*", meet)


@pytest.mark.long
def test_a_slider_that_moves_before_the_picture_of_a_link_has_come_keeps_its_own(moved_link, open_page):
    held: list[Route] = []
    page = open_page(moved_link, prepare=hold_pictures(held))
    slider = page.get_by_label("Dimension 4", exact=True)
    expect(slider).to_have_value("30")
    before = picture(page, "#decoded")
    slider.fill("-30")
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    expect(page.locator(".decoded")).to_have_attribute("aria-busy", "false")
    shown = picture(page, "#decoded")
    with page.expect_request_finished(lambda request: request == held[0].request):
        held[0].continue_()
    page.wait_for_timeout(200)  # until it is decoded
    assert picture(page, "#decoded") == shown


@pytest.mark.long
def test_a_drawing_that_is_cleared_before_the_picture_of_its_link_has_come_stays_away(moved_link, open_page):
    held: list[Route] = []
    page = open_page(moved_link, prepare=hold_pictures(held))
    expect(page.get_by_label("Dimension 4", exact=True)).to_have_value("30")
    page.click("#clear")
    with page.expect_request_finished(lambda request: request == held[0].request):
        held[0].continue_()
    page.wait_for_timeout(200)  # nothing goes wrong, see `open_page`
    expect(page.locator("#capsule")).to_be_hidden()


def link(address: str, kept: object) -> str:
    return f"{address}/#see={base64.urlsafe_b64encode(json.dumps(kept).encode()).decode().rstrip('=')}"


ONE = {"image": {"strokes": [[127, 40, 127, 200]]}, "objects": [], "chosen": 0}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"model": "none", "version": 2}, "none is not served here. This is capsnet-digits."),
        (
            {"model": "capsnet-digits", "version": 99},
            "Version 99 of capsnet-digits is not served. This is version 1.",
        ),
    ],
)
def test_a_link_to_a_model_that_is_not_served_says_so(open_page, address, model, said):
    page = open_page(link(address, model | ONE))
    assert answer(page) == "1"
    expect(page.locator("#notice")).to_have_text(said)
    page.click('[aria-label="Sample: 7"]')
    expect(page.locator("#best")).to_have_text("7")
    expect(page.locator("#notice")).to_be_visible()
    choose_model(page, "capsnet-mnist")
    expect(page.locator("#notice")).to_be_hidden()


def test_a_link_that_is_cut_short_opens_the_page_and_says_so(open_page, address):
    page = open_page(link(address, ONE)[:-9])
    expect(page.locator("#notice")).to_contain_text("This link is damaged")
    page.click('[aria-label="Sample: 1"]')
    assert answer(page) == "1"
    expect(page.locator("#notice")).to_contain_text("This link is damaged")
    page.click('[aria-label="Sample: 1"]')
    assert answer(page) == "1"


WRONG = [
    {"image": {"strokes": 5}, "objects": [], "chosen": 0},
    {"image": {"strokes": [[]]}, "objects": [], "chosen": 0},
    {"image": {"seen": "%"}, "objects": [], "chosen": 0},
    {"image": {"strokes": [[1, 2, 90, 90]]}},
    {"image": {"strokes": [[1, 2, 90, 90]]}, "objects": [{"label": "1"}], "chosen": 0},
    {"image": {"strokes": [[1, 2, 90, 90]]}, "objects": [{"label": "1", "moves": []}], "chosen": "length"},
    [None],
    "text",
]


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
def test_a_link_with_other_contents_than_the_page_gives_opens_the_page(open_page, address, wrong):
    page = open_page(link(address, wrong))
    page.wait_for_selector(".sample")
    expect(page.locator("#best")).to_be_empty()
    page.click('[aria-label="Sample: 1"]')
    assert answer(page) == "1"


NO_PICTURE = {"image": {"seen": "bm8gcGljdHVyZQ=="}, "objects": [], "chosen": 0}


@pytest.mark.parametrize("model", ["capsnet-digits", "matrix-capsnet-toys"])
def test_a_link_whose_image_is_none_is_damaged(open_page, address, model):
    page = open_page(link(address, {"model": model} | NO_PICTURE))
    expect(page.locator("#notice")).to_contain_text("This link is damaged")


def test_an_edit_before_a_link_is_answered_takes_it_from_the_address(open_page, address):
    held = Held("**/classify*")
    page = open_page(link(address, ONE), prepare=held.hold)
    expect(page.locator("#clear")).to_be_enabled()
    assert "see=" in page.url
    page.click("#clear")
    expect(page).to_have_url(f"{address}/")
    held.release()


def test_an_edit_of_a_link_whose_picture_fails_takes_it_from_the_address(moved_link, open_page, address):
    problem = {"title": "Internal error", "status": 500}
    page = open_page(
        moved_link,
        may_complain=True,
        prepare=lambda page: page.route(
            "**/reconstruct*", lambda route: route.fulfill(status=500, json=problem)
        ),
    )
    expect(page.locator("#notice")).to_contain_text("Internal error")
    assert page.url == moved_link
    page.click("#clear")
    expect(page).to_have_url(f"{address}/")


def test_curl_and_python_give_the_answer_on_the_screen(copying, tmp_path):
    draw(copying, 5)
    command = copied(copying, "#copy-curl")
    named = answer(copying)
    assert f'"label":"{named}"' in run_shell(command, tmp_path)
    program = copied(copying, "#copy-python")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0].startswith(f"{named} 0.")


PASTE = """(base64) => {
    const content = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File([content], "image.png", { type: "image/png" }));
    document.dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
}"""


@pytest.mark.long
def test_a_command_for_a_pasted_image_names_no_file(copying, tmp_path):
    content = base64.b64encode(Path("docs/three.png").read_bytes()).decode()
    copying.evaluate(PASTE, content)
    assert answer(copying) == "3"
    assert '"label":"3"' in run_shell(copied(copying, "#copy-curl"), tmp_path)


@pytest.mark.long
def test_a_clipboard_that_refuses_is_told(page):
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    page.click("#share")
    expect(page.locator("#copied")).to_have_text("The browser does not let this page copy")


def test_a_copy_over_plain_http_leaves_the_focus_where_it_was(open_page, address):
    hidden = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
    page = open_page(f"{address}/", prepare=lambda page: page.add_init_script(hidden))
    page.locator("#share").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#copied")).not_to_be_empty()
    expect(page.locator("#share")).to_be_focused()


def test_the_address_is_not_written_with_every_move_of_the_pen(open_page, address):
    page = open_page(f"{address}/")
    page.wait_for_selector(".sample")
    page.evaluate("""() => {
        const write = history.replaceState.bind(history);
        window.written = 0;
        history.replaceState = (...given) => { window.written++; write(...given); };
    }""")
    draw(page, 3)
    assert answer(page) == "3"
    assert page.evaluate("window.written") == 0


def test_curl_and_python_decode_a_moved_capsule(copying, tmp_path):
    copying.click('[aria-label="Sample: 5"]')
    answer(copying)
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


@pytest.mark.long
def test_unusual_names_of_classes_and_files_are_shown_and_copied_as_they_are(open_page, tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1", classes=UNUSUAL)
    file = tmp_path / 'it\'s 1, $(id); "x".png'
    file.write_bytes(Path("docs/three.png").read_bytes())
    with live_service(settings_for(tmp_path / "models", optimize=False)) as client:
        page = open_page(f"{str(client.base_url).rstrip('/')}/", permissions=CLIPBOARD)
        page.set_input_files("#file", file)
        assert answer(page) in UNUSUAL
        assert set(page.locator("#bars .name").all_text_contents()) == set(UNUSUAL)
        asked = copied(page, "#copy-curl")
        assert run_shell(asked, tmp_path).count("%22") == 2  # as curl sends quotes in names
        for label in UNUSUAL:
            page.get_by_role("radio", name=label).check()
            move(page, 1, 5)
            run_shell(copied(page, "#copy-curl"), tmp_path)
            Image.open(tmp_path / "capsule.png").verify()
            program = copied(page, "#copy-python")
            subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.long
def test_a_link_brings_back_a_class_that_was_chosen_among_several_objects(copying, open_page):
    choose_model(copying, "capsnet-multimnist")
    copying.click('[aria-label="Sample: 3 and 8"]')
    answer(copying)
    other = next(name for name in "0125" if name not in copying.inner_text("#best"))
    second = copying.inner_text("#best").split(" + ")[1]
    for place, label in ((1, other), (0, second)):
        copying.locator("#objects input").nth(place).check()
        copying.check(f'#bars input[value="{label}"]')
    move(copying, 2, 5)
    labels = copying.locator("#objects .object").all_inner_texts()
    restored = open_page(copied(copying, "#share"))
    expect(restored.locator(".slider.moved")).to_have_count(1)
    assert restored.locator("#objects .object").all_inner_texts() == labels


def test_a_command_for_a_links_image_brings_the_image(copying, open_page, tmp_path):
    copying.set_input_files("#file", "docs/seven.jpg")
    answer(copying)
    restored = open_page(copied(copying, "#share"), permissions=CLIPBOARD)
    assert answer(restored) == "7"
    assert '"label":"7"' in run_shell(copied(restored, "#copy-curl"), tmp_path)
