"""The page in a browser: a digit is drawn and named, its capsule moved, two digits taken apart."""

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import CDPSession, Page, Request, Route, expect

from tests.support.accessibility import serious_findings
from tests.support.live_service import live_service, settings_for
from tests.support.pen import draw
from tests.support.tiny_bundle import DIGITS, rewrite_manifest, write_bundle

PICTURE = "canvas => canvas.toDataURL()"
SUMS = """canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    .reduce((sums, level, index) => { sums[index % 4] += level; return sums; }, [0, 0, 0, 0])"""
LONG = "Hochgeschwindigkeitseisenbahnwagen_2023"  # a class of `own_images`
CHANGED = "([canvas, before]) => document.querySelector(canvas).toDataURL() !== before"


COUNT_READS = """() => {
    const read = window.createImageBitmap;
    [window.reads, window.bitmaps] = [0, []];
    window.createImageBitmap = async (...given) => {
        window.reads += 1;
        const bitmap = await read(...given);
        if (given[0] instanceof File) window.bitmaps.push(bitmap);
        return bitmap;
    };
}"""


class Held:
    """Requests that wait until they are released, the last one first."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._routes: list[Route] = []
        self._holds = True

    def hold(self, page: Page) -> None:
        """Let the page's requests to addresses of this pattern wait."""

        def meet(route: Route) -> None:
            if self._holds:
                self._routes.append(route)
            else:
                route.continue_()

        page.route(self.pattern, meet)

    def release(self) -> None:
        """Let them go, and those that come later."""
        self._holds = False
        for route in reversed(self._routes):
            route.continue_()


def picture(page: Page, canvas: str) -> str:
    """A canvas as a PNG file."""
    return page.locator(canvas).evaluate(PICTURE)


def sums(page: Page, canvas: str) -> list[int]:
    """Of the red, green, blue and alpha levels of a canvas."""
    return page.locator(canvas).evaluate(SUMS)


def answer(page: Page) -> str:
    """What the page says once the last stroke is answered."""
    expect(page.locator("#spoken")).to_contain_text("It sees")
    return page.inner_text("#best")


def choose_model(page: Page, name: str) -> None:
    page.check(f'input[value="{name}"]')


def draw_every_digit(page: Page) -> list[str]:
    """What 0 to 9, drawn one after the other, are taken for."""
    named = []
    for digit in range(10):
        draw(page, digit)
        named.append(answer(page))
        page.click("#clear")
        expect(page.locator("#best")).to_be_empty()
    return named


def test_at_least_nine_of_ten_drawn_digits_are_named_rightly(page):
    named = draw_every_digit(page)
    assert sum(name == str(digit) for digit, name in enumerate(named)) >= 9, named


def test_the_answer_comes_while_the_digit_is_drawn_and_shows_what_the_network_sees(page):
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    page.mouse.down()
    for step in range(20):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30 + step * 10)
    expect(page.locator("#best")).to_have_text("1")
    expect(page.locator("#spoken")).to_be_empty()  # spoken once, at the end
    page.mouse.up()
    expect(page.locator("#spoken")).to_contain_text("It sees 1")
    assert sums(page, "#seen")[0] > 5000
    assert "28 × 28" in page.inner_text("#seen-note")
    assert page.locator(".threshold").count() == 10


def press(page: Page) -> None:
    """Put the pen down in the middle of the drawing area."""
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()


def classified(page: Page) -> list[Request]:
    """The questions that the page asks from now on."""
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request) if "classify" in request.url else None)
    return asked


@pytest.mark.long
def test_lifting_the_pen_ends_a_drawing_that_is_answered_without_another_question(page):
    asked = classified(page)
    press(page)
    expect(page.locator("#best")).not_to_be_empty()
    expect(page.locator("#spoken")).to_be_empty()
    page.mouse.up()
    expect(page.locator("#spoken")).to_contain_text("It sees")
    assert len(asked) == 1


@pytest.mark.long
def test_lifting_the_pen_while_the_last_question_is_asked_waits_for_its_answer(page):
    asked, held = classified(page), Held("**/classify*")
    held.hold(page)
    with page.expect_request("**/classify*"):
        press(page)
    page.mouse.up()
    held.release()
    expect(page.locator("#spoken")).to_contain_text("It sees")
    assert len(asked) == 1


@pytest.mark.long
def test_lifting_the_pen_while_an_earlier_drawing_is_asked_about_asks_about_the_last_at_once(page):
    held = Held("**/classify*")
    held.hold(page)
    with page.expect_request("**/classify*"):
        press(page)
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    with page.expect_request("**/classify*") as last:
        page.mouse.up()
    held.release()
    expect(page.locator("#spoken")).to_contain_text("It sees 1")
    assert last.value.response().ok


@pytest.mark.long
def test_the_answer_to_a_drawing_is_not_spoken_once_somebody_draws_on(page):
    asked: list[Route] = []
    page.route("**/classify*", lambda route: asked.append(route))
    with page.expect_request("**/classify*"):
        press(page)
    page.mouse.up()
    press(page)
    asked[0].continue_()
    expect(page.locator("#best")).not_to_be_empty()
    expect(page.locator("#spoken")).to_be_empty()
    page.unroute("**/classify*")
    page.mouse.up()
    expect(page.locator("#spoken")).to_contain_text("It sees")
    press(page)
    expect(page.locator("#spoken")).to_be_empty()


def touch(devtools: CDPSession, *places: tuple[float, float]) -> None:
    """Hold one finger at each of these places, in the order in which they came; those beyond are lifted."""
    points = [{"id": finger, "x": x, "y": y} for finger, (x, y) in enumerate(places)]
    kind = "touchStart" if points else "touchEnd"
    devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


@pytest.mark.long
def test_a_second_finger_neither_ends_the_stroke_of_the_first_nor_draws(open_page, address):
    page = open_page(f"{address}/", has_touch=True)
    page.wait_for_selector(".sample")
    devtools, box = page.context.new_cdp_session(page), page.locator("#pad").bounding_box()
    line = [(box["x"] + box["width"] / 2, box["y"] + 30 + 20 * step) for step in range(10)]
    for place in line:
        touch(devtools, place)
    touch(devtools)
    alone = answer(page), picture(page, "#pad")
    page.click("#clear")
    for place in line[:5]:
        touch(devtools, place)
    for palm in ((box["x"] + 30, box["y"] + 30), (box["x"] + 60, box["y"] + 60)):
        touch(devtools, line[4], palm)
    for place in line[4:]:
        touch(devtools, place)
    touch(devtools)
    assert (answer(page), picture(page, "#pad")) == alone


def test_undo_takes_the_last_stroke_back_and_clear_everything(page):
    draw(page, 1)
    first = answer(page)
    empty_elsewhere = picture(page, "#pad")
    draw(page, 1, middle=(0.2, 0.5))
    page.click("#undo")
    assert picture(page, "#pad") == empty_elsewhere
    expect(page.locator("#best")).to_have_text(first)
    page.click("#clear")
    expect(page.locator("#capsule")).to_be_hidden()
    assert not any(sums(page, "#pad"))
    assert page.is_disabled("#clear")


SHIFT = "() => document.querySelector('#main').prepend(document.createElement('br'), 'Something above')"


@pytest.mark.long
def test_a_page_that_moves_under_the_pen_bends_no_stroke(page):
    lines, box = [], page.locator("#pad").bounding_box()
    for script in ("() => {}", SHIFT):
        press(page)
        page.evaluate(script)
        page.mouse.move(box["x"] + 30, box["y"] + box["height"] / 2)
        page.mouse.up()
        lines.append(picture(page, "#pad"))
        page.click("#clear")
    assert lines[0] == lines[1]


@pytest.mark.long
def test_a_picture_that_is_shown_or_can_be_brought_back_is_kept_in_the_size_of_the_area_only(page):
    page.evaluate(COUNT_READS)
    page.set_input_files("#file", "docs/three.png")
    assert answer(page) == "3"
    three = picture(page, "#pad")
    page.set_input_files("#file", "docs/seven.jpg")
    expect(page.locator("#best")).to_have_text("7")
    assert page.evaluate("window.bitmaps.map(({ width }) => width)") == [0, 0], "both are closed"
    page.click("#undo")
    assert picture(page, "#pad") == three


@pytest.mark.long
def test_fifty_changes_can_be_undone(page):
    page.locator("#pad").focus()
    for _ in range(2 * 52):
        page.keyboard.press("Space")
    for _ in range(50):
        expect(page.locator("#undo")).to_be_enabled()
        page.keyboard.press("Backspace")
    expect(page.locator("#undo")).to_be_disabled()
    expect(page.locator("#clear")).to_be_enabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_without_a_ground_is_shown_on_white_as_the_network_gets_it(open_page, address, scheme):
    page = open_page(f"{address}/", color_scheme=scheme)
    file = io.BytesIO()
    Image.new("LA", (40, 40), (0, 0)).save(file, "PNG")
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": file.getvalue()})
    expect(page.locator("#clear")).to_be_enabled()
    assert sums(page, "#pad") == [255 * 560 * 560] * 4


@pytest.mark.parametrize(("ink", "ground"), [(255, 0), (0, 255)])
def test_a_drawing_without_a_ground_is_shown_on_the_one_that_it_stands_out_from(page, ink, ground):
    drawn = Image.new("LA", (40, 40), (0, 0))
    drawn.paste((ink, 255), (18, 8, 22, 32))
    file = io.BytesIO()
    drawn.save(file, "PNG")
    page.set_input_files("#file", {"name": "one.png", "mimeType": "image/png", "buffer": file.getvalue()})
    assert answer(page) == "1"
    strokes = 56 * 336  # pixels of the pad, 14 for each of the picture's
    expected = 560 * 560 * ground + strokes * (ink - ground)
    assert sums(page, "#pad")[:3] == [expected] * 3


def digit_one(side: int, kind: str = "PNG") -> bytes:
    """The file of a 1, light on dark."""
    drawn = Image.new("L", (side, side))
    drawn.paste(255, (side * 4 // 9, side // 6, side * 5 // 9, side * 5 // 6))
    file = io.BytesIO()
    drawn.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("side", "kind", "said"),
    [
        (28, "PNG", "28 × 28 pixels, not moved or scaled"),
        (56, "PNG", "28 × 28 pixels, the ink found, scaled and centered"),
        (28, "TIFF", "28 × 28 pixels"),  # Chromium does not read it
    ],
)
def test_what_is_said_of_the_models_input_depends_on_the_size_of_the_opened_image(page, side, kind, said):
    page.set_input_files("#file", {"name": "one", "mimeType": "image/*", "buffer": digit_one(side, kind)})
    answer(page)
    expect(page.locator("#seen-note")).to_have_text(said)


@pytest.mark.parametrize(("side", "rule"), [(32, "not moved or scaled"), (48, "cut from the middle")])
def test_what_is_said_of_a_pair_depends_on_the_size_of_its_views(page, side, rule):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    view = {"name": "view.png", "mimeType": "image/png", "buffer": digit_one(side)}
    page.set_input_files("#file", [view, view])
    expect(page.locator("#seen-note")).to_have_text(f"Two views of 32 × 32 pixels, {rule}")


def test_the_network_sees_no_ink_that_is_not_on_the_pad(page):
    choose_model(page, "capsnet-multimnist")
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.9 * box["height"])
    page.mouse.down()
    for across, down in ((0.8, 0.9), (1.15, 0.9), (1.15, 0.5), (1.15, 0.1)):
        page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    page.mouse.up()
    answer(page)
    beyond = """canvas => canvas.getContext("2d").getImageData(32, 0, 4, 36).data
        .reduce((sum, level, at) => sum + (at % 4 < 3 ? level : 0), 0)"""
    assert page.locator("#seen").evaluate(beyond) == 0
    assert sum(sums(page, "#seen")[:3]) > 0


def test_a_browser_that_hides_what_is_painted_is_told_of(open_page, address):
    noise = """() => {
        const { prototype } = OffscreenCanvasRenderingContext2D;
        const read = prototype.getImageData;
        prototype.getImageData = function (...place) {
            const found = read.apply(this, place);
            found.data[0] ^= 1;
            return found;
        };
    }"""
    page = open_page(f"{address}/", prepare=lambda page: page.add_init_script(f"({noise})()"))
    expect(page.locator("#notice")).to_contain_text("hides the pixels of canvases")


def test_a_slider_changes_the_reconstruction_and_reset_brings_it_back(page):
    page.click('[aria-label="Sample: 7"]')
    answer(page)
    before = picture(page, "#decoded")
    slider = page.get_by_label("Dimension 3", exact=True)
    slider.focus()
    for _ in range(15):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".slider.moved")).to_have_count(1)
    expect(page.locator("#reset")).to_be_enabled()
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    page.click("#reset")
    assert picture(page, "#decoded") == before
    assert slider.input_value() == "0"


def test_a_slider_asks_once_however_far_it_moves(page):
    page.click('[aria-label="Sample: 7"]')
    answer(page)
    asked = []
    page.on("request", lambda request: asked.append(request))
    before = picture(page, "#decoded")
    page.get_by_label("Dimension 5", exact=True).focus()
    for _ in range(25):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    sweeps = [sweep for sweep in map(sweep_of, asked) if sweep]
    assert [sweep["dimensions"] for sweep in sweeps if not of_both_ends(sweep)] == [[5]]


def of_both_ends(sweep: dict) -> bool:
    return sweep["step"] == pytest.approx(sweep["stop"] - sweep["start"])


def sweep_of(request: Request) -> dict | None:
    return request.post_data_json["sweep"] if "reconstruct" in request.url else None


def test_another_class_may_be_decoded(page):
    page.click('[aria-label="Sample: 7"]')
    answer(page)
    seven, held = picture(page, "#decoded"), Held("**/reconstruct*")
    held.hold(page)
    page.check('#bars input[value="2"]')
    expect(page.locator("#objects")).to_have_text("of the 2")
    expect(page.get_by_label("Reconstruction of the 7")).to_be_visible()
    assert picture(page, "#decoded") == seven, "no picture has another's name"
    expect(page.locator(".decoded")).to_have_attribute("aria-busy", "true")
    held.release()
    expect(page.get_by_label("Reconstruction of the 2")).to_be_visible()
    expect(page.locator(".decoded")).to_have_attribute("aria-busy", "false")
    assert picture(page, "#decoded") != seven


@pytest.mark.long
def test_of_classes_chosen_quickly_one_after_the_other_the_last_stays_and_its_sliders_move_at_once(page):
    page.click('[aria-label="Sample: 7"]')
    answer(page)
    held = Held("**/reconstruct*")
    held.hold(page)
    for label in ("2", "3"):
        page.check(f'#bars input[value="{label}"]')
    page.get_by_label("Dimension 1", exact=True).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".slider.moved")).to_have_count(1)
    before = picture(page, "#decoded")
    held.release()
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    page.click("#reset")
    expect(page.locator("#objects")).to_have_text("of the 3")
    assert page.locator('#bars input[value="3"]').is_checked()


@pytest.mark.long
def test_a_file_that_is_opened_before_a_model_is_there_is_answered_once_it_is(open_page, address):
    held = Held("**/models/*")
    page = open_page(f"{address}/", prepare=held.hold, wait_for="#pad")
    page.set_input_files("#file", "docs/seven.jpg")
    expect(page.locator("#clear")).to_be_enabled()
    held.release()
    assert answer(page) == "7"


DROP = """async ([selector, base64]) => {
    const dataTransfer = new DataTransfer();
    const content = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    dataTransfer.items.add(new File([content], "a.jpg", { type: "image/jpeg" }));
    const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
    document.querySelector(selector).dispatchEvent(drop);
    return drop.defaultPrevented;
}"""


@pytest.mark.long
def test_a_file_that_is_dropped_beside_the_view_is_taken_and_on_the_tour_does_nothing(page):
    seven = base64.b64encode(Path("docs/seven.jpg").read_bytes()).decode()
    page.click("#tab-tour")
    assert page.evaluate(DROP, ["#tour", seven]), "the browser does not open it"
    page.click("#tab-explore")
    expect(page.locator("#clear")).to_be_disabled()
    assert page.evaluate(DROP, ["html", seven])
    assert answer(page) == "7"


SLOW = """() => {
    const [create, slow] = [window.createImageBitmap, Promise.withResolvers()];
    window.createImageBitmap = async (file, ...rest) => {
        if (file.name !== "slow.png") return create(file, ...rest);
        await slow.promise;
        return (window.bitmap = create(file, ...rest));
    };
    window.goOn = async () => {
        slow.resolve();
        await new Promise((resolve) => setTimeout(resolve));
        await window.bitmap;
        await new Promise((resolve) => setTimeout(resolve)); // what waited for it has run
    };
}"""


def given(name: str) -> dict:
    return {"name": name, "mimeType": "image/png", "buffer": Path("docs/three.png").read_bytes()}


@pytest.mark.long
@pytest.mark.parametrize("later", ["sample", "file"])
def test_an_image_that_is_read_slowly_takes_the_place_of_nothing_newer(page, later):
    page.evaluate(SLOW)
    page.set_input_files("#file", given("slow.png"))
    if later == "sample":
        page.click('[aria-label="Sample: 7"]')
    else:
        page.set_input_files("#file", "docs/seven.jpg")
    assert answer(page) == "7"
    before = picture(page, "#pad")
    page.evaluate("window.goOn()")
    assert picture(page, "#pad") == before
    assert answer(page) == "7"


def test_no_toy_is_marked_beside_views_of_ones_own(page):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    page.set_input_files("#file", [given("left.png"), given("right.png")])
    expect(page.locator("#toys :checked")).to_have_count(0)
    page.get_by_label("Azimuth").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#toys :checked")).to_have_value("truck")
    expect(page.locator("#best")).to_have_text("truck")


@pytest.mark.long
def test_a_pair_that_is_read_slowly_takes_the_place_of_nothing_newer(page):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    page.evaluate(SLOW)
    page.set_input_files("#file", [given("slow.png"), given("right.png")])
    page.check('#toys input[value="airplane"]')
    expect(page.locator("#spoken")).to_contain_text("airplane")
    before = picture(page, "#left")
    page.evaluate("window.goOn()")
    assert picture(page, "#left") == before


def test_two_digits_are_taken_apart_in_two_colors_and_move_each_by_itself(page):
    choose_model(page, "capsnet-multimnist")
    page.click('[aria-label="Sample: 3 and 8"]')
    expect(page.locator("#objects input")).to_have_count(2)
    assert sorted(answer(page).split(" + ")) == ["3", "8"]
    red, _, blue, _ = sums(page, "#decoded")
    assert min(red, blue) > 5000
    page.locator("#objects input").nth(1).check()
    page.get_by_label("Dimension 1", exact=True).focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#reset")).to_be_enabled()
    page.locator("#objects input").nth(0).check()
    assert page.is_disabled("#reset"), "the other digit has not moved"


@pytest.mark.long
def test_a_move_whose_picture_comes_when_the_other_digit_is_chosen_is_kept(page):
    choose_model(page, "capsnet-multimnist")
    page.click('[aria-label="Sample: 3 and 8"]')
    answer(page)
    before, held = picture(page, "#decoded"), Held("**/reconstruct*")
    held.hold(page)
    page.get_by_label("Dimension 1", exact=True).fill("30")
    page.locator("#objects input").nth(1).check()
    held.release()
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    expect(page.locator(".decoded")).to_have_attribute("aria-busy", "false")


def test_a_toy_is_named_while_it_turns_and_its_pose_is_a_matrix(page):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    before = picture(page, "#matrix")
    page.get_by_label("Azimuth").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#azimuth-value")).to_have_text("140°")
    page.wait_for_function(CHANGED, arg=["#matrix", before])
    assert page.locator("#matrix").is_visible()


TO_BMP = """async ([width, height, levels]) => {
    const { toBmp } = await import("/playground/scripts/bmp.js");
    const canvas = new OffscreenCanvas(width, height);
    const pixels = new Uint8ClampedArray(levels.flatMap((level) => [level, level, level, 255]));
    canvas.getContext("2d").putImageData(new ImageData(pixels, width), 0, 0);
    const file = toBmp(canvas);
    const shown = await createImageBitmap(file);
    return [[...new Uint8Array(await file.arrayBuffer())], file.type, shown.width, shown.height];
}"""


@pytest.mark.long
def test_a_drawing_is_sent_as_a_bmp_file_that_others_read(page):
    levels = np.random.default_rng(3).integers(0, 256, (5, 16))
    content, kind, *size = page.evaluate(TO_BMP, [16, 5, levels.ravel().tolist()])
    assert (kind, size) == ("image/bmp", [16, 5])
    with Image.open(io.BytesIO(bytes(content))) as read:
        found = np.asarray(read.convert("L"), int)
    assert np.abs(found - levels).max() <= 8


@pytest.mark.long
def test_of_two_numbers_moved_quickly_the_picture_shows_both(page):
    page.click('[aria-label="Sample: 7"]')
    answer(page)
    held = Held("**/reconstruct*")
    held.hold(page)
    for dimension in (3, 5):
        slider = page.get_by_label(f"Dimension {dimension}", exact=True)
        slider.fill("20")
    before = picture(page, "#decoded")
    came = []
    page.on("requestfinished", lambda request: came.append(request))
    held.release()  # the answer to the first move comes last
    page.wait_for_function(CHANGED, arg=["#decoded", before])
    while sum("reconstruct" in request.url for request in came) < 2:
        page.wait_for_timeout(50)
    page.wait_for_timeout(200)  # until both are decoded
    shown = picture(page, "#decoded")
    for value in ("19", "20"):
        slider.fill(value)
    page.wait_for_load_state("networkidle")
    assert picture(page, "#decoded") == shown


@pytest.mark.long
def test_a_toy_that_is_dragged_down_and_back_is_shown_as_the_sliders_say(page):
    choose_model(page, "matrix-capsnet-toys")
    answer(page)
    before, value = picture(page, "#left"), page.input_value("#elevation")
    box = page.locator("#pair .views").bounding_box()
    [x, y] = [box["x"] + 40, box["y"] + 40]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 40)
    page.mouse.move(x, y)
    page.mouse.up()
    assert page.input_value("#elevation") == value
    assert picture(page, "#left") == before


@pytest.mark.long
def test_a_second_finger_neither_stops_the_toy_that_the_first_turns_nor_turns_it(open_page, address):
    page = open_page(f"{address}/", has_touch=True)
    choose_model(page, "matrix-capsnet-toys")
    answer(page)
    expect(page.locator("#azimuth-value")).to_have_text("60°")
    devtools, box = page.context.new_cdp_session(page), page.locator("#pair .views").bounding_box()
    [x, y] = [box["x"] + 80, box["y"] + 40]
    touch(devtools, (x, y))
    for palm in ((x + 60, y), (x + 120, y)):
        touch(devtools, (x, y), palm)
    expect(page.locator("#azimuth-value")).to_have_text("60°")
    touch(devtools, (x, y))
    touch(devtools, (x - 36, y))
    expect(page.locator("#azimuth-value")).to_have_text("100°")
    touch(devtools)


@pytest.fixture
def own_images(tmp_path: Path) -> Iterator[str]:
    """Address of a service whose model was trained on one's own images, in classes with long names.

    Named before `open_page`: pages are closed before the service ends.
    """
    names = ("cat", "a bridge over a river in the morning", LONG)
    bundle = write_bundle(tmp_path / "models" / ("own" * 21) / "1", classes=names)
    facts = DIGITS.model_copy(update={"polarity": "any", "placement": "fit"})
    rewrite_manifest(bundle, preprocessing=facts)
    with live_service(settings_for(tmp_path / "models", optimize=False)) as client:
        yield str(client.base_url).rstrip("/")


def test_a_model_of_ones_own_images_asks_for_an_image_and_shows_none_before(own_images, open_page):
    page = open_page(f"{own_images}/")
    expect(page.get_by_role("region", name="Your image")).to_be_visible()
    expect(page.get_by_role("application", name="Image area")).to_be_visible()
    field = page.locator("#pad").evaluate("pad => getComputedStyle(pad).backgroundColor")
    expect(page.locator("#seen")).to_have_css("background-color", field)
    for button in ("#undo", "#clear"):
        expect(page.locator(button)).to_be_hidden()
    assert not serious_findings(page)
    page.set_input_files("#file", "docs/seven.jpg")
    answer(page)
    expect(page.locator("#seen")).to_have_css("background-color", "rgb(0, 0, 0)")
    page.click("#clear")
    expect(page.locator("#seen")).to_have_css("background-color", field)


def test_a_model_of_digits_asks_for_a_drawing(page):
    expect(page.get_by_role("region", name="You draw")).to_be_visible()
    pad = page.get_by_role("application", name="Drawing area")
    expect(pad).to_have_accessible_description(re.compile("^Arrow keys move the pen, .* Delete clears.$"))
    expect(page.locator("#undo")).to_be_visible()


def test_without_a_decoder_there_is_no_capsule_to_choose(tmp_path, open_page):
    write_bundle(tmp_path / "tiny" / "1", decoder=False)
    with live_service(settings_for(tmp_path, optimize=False)) as client:
        page = open_page(f"{str(client.base_url).rstrip('/')}/")
        page.set_input_files("#file", "docs/seven.jpg")
        answer(page)
        for choice in page.locator("#bars input").all():
            expect(choice).to_be_disabled()


@pytest.mark.parametrize("width", [360, 1200])
def test_long_names_of_classes_can_be_read_beside_their_bars(own_images, open_page, width):
    page = open_page(f"{own_images}/", viewport={"width": width, "height": 900})
    page.set_input_files("#file", "docs/seven.jpg")
    answer(page)
    tracks = [bar.locator(".track").bounding_box() for bar in page.locator("#bars .bar").all()]
    assert len({(track["x"], track["width"]) for track in tracks}) == 1, "all on one scale"
    assert tracks[0]["width"] > 80
    for name in page.locator("#bars .name").all():
        assert name.evaluate("name => name.scrollWidth <= name.clientWidth")
    page.check(f'#bars input[value="{LONG}"]')
    expect(page.locator("#objects")).to_have_text(f"of the {LONG}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
