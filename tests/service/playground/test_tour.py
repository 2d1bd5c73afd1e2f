"""The guided tour, from its first step to its last."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from playwright.sync_api import Page, Response, Route, expect

from tests.service.playground.test_explore import CHANGED, Held, picture
from tests.service.playground.test_routing import PLAY_MS
from tests.support.accessibility import serious_findings

TITLES = (
    "A capsule is a group of numbers",
    "Its length says whether, its direction says how",
    "Squashing turns a length into a probability",
    "Parts vote for wholes",
    "Votes that agree count more",
)


def test_the_tour_leads_through_five_steps_and_back(open_page, address):
    page = open_page(f"{address}/", color_scheme="dark")
    page.click("#tab-tour")
    for number, title in enumerate(TITLES, start=1):
        expect(page.locator("#tour-place")).to_have_text(f"Step {number} of 5")
        expect(page.locator("#tour-title")).to_have_text(title)
        expect(page.locator("#tour-text p")).to_have_count(2)
        assert page.locator("#tour-figure canvas").count()
        assert not serious_findings(page), title
        if number < 5:
            page.click("#tour-next")
    assert page.is_disabled("#tour-next")
    page.click("#tour-back")
    expect(page.locator("#tour-title")).to_have_text(TITLES[3])


def found(response: Response) -> dict:
    """The class of the tour's digit in an answer of /classify."""
    [result] = response.json()["results"]
    return next(one for one in result["classes"] if one["label"] == "4")


def move(page: Page, slider: str, key: str, times: int) -> dict:
    """Move a slider step by step; what is found at its last place."""
    page.get_by_role("slider", name=slider).focus()
    for _ in range(times):
        with page.expect_response("**/classify*") as response:
            page.keyboard.press(key)
    return found(response.value)


def degrees(one: dict, other: dict) -> int:
    """The angle between two poses."""
    a, b = np.array(one["pose"]), np.array(other["pose"])
    return round(math.degrees(math.acos(min(1, a @ b / np.linalg.norm(a) / np.linalg.norm(b)))))


def test_a_digit_that_is_turned_keeps_its_length_while_its_pose_moves(page):
    with page.expect_response("**/classify*") as response:
        page.click("#tab-tour")
    at_rest = found(response.value)
    page.click("#tour-next")
    said = page.locator("#tour .tour-said")
    expect(said).to_contain_text("turned by 0°")
    turned = move(page, "Turn", "ArrowRight", 3)
    expect(page.locator("#tour .turn").first).to_contain_text("15°")
    lengths = f"Length {turned['probability']:.2f} (at rest {at_rest['probability']:.2f})"
    expect(said).to_have_text(f"{lengths}; direction turned by {degrees(at_rest, turned)}°")
    assert turned["probability"] == pytest.approx(at_rest["probability"], abs=0.1)
    assert degrees(at_rest, turned) >= 10
    move(page, "Shift", "ArrowRight", 1)
    expect(page.locator("#tour .turn").last).to_contain_text("1 px")
    shifted = move(page, "Turn", "ArrowLeft", 3)
    expect(page.locator("#tour .turn").first).to_contain_text("0°")
    expect(said).to_contain_text(f"turned by {degrees(at_rest, shifted)}°")
    assert degrees(at_rest, shifted) >= 1


def test_the_first_step_moves_a_number_of_a_live_capsule(page):
    page.click("#tab-tour")
    expect(page.locator("#tour-text p")).to_have_count(2)
    decoded = "#tour-figure .tour-side canvas"
    before = picture(page, decoded)
    page.locator("#tour-figure .tour-side input").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(CHANGED, arg=[decoded, before])


DOT_PIXELS = """async () => {
    const { squashCurve } = await import("/playground/scripts/tour_figures.js");
    const { canvas, paint } = squashCurve([0.99, 0.1].map((probability) => ({ label: "", probability })));
    document.body.append(canvas);
    canvas.style.setProperty("--accent", "rgb(1, 2, 3)");
    paint();
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const pixels = Array.from({ length: data.length / 4 }, (_, at) => data.slice(4 * at, 4 * at + 4).join());
    return pixels.filter((pixel) => pixel === "1,2,3,255").length;
}"""


def test_the_dot_of_a_class_that_is_almost_certain_lies_on_the_canvas(page):
    assert page.evaluate(DOT_PIXELS) > 200  # of a radius of 9


def fail_once(page: Page, pattern: str) -> None:
    """Let the next request to an address of this pattern meet an error of the service."""
    problem = '{"title": "Internal error", "status": 500}'

    def fail(route: Route) -> None:
        route.fulfill(status=500, headers={"Content-Type": "application/problem+json"}, body=problem)

    page.route(pattern, fail, times=1)


def go_to(page: Page, step: int) -> None:
    """Go one step ahead or back."""
    page.click("#tour-next" if int(page.inner_text("#tour-place").split()[1]) < step else "#tour-back")
    expect(page.locator("#tour-title")).to_have_text(TITLES[step - 1])


@pytest.mark.long
@pytest.mark.parametrize(("step", "asked"), [(1, "**/classify*"), (4, "**/explain*")])
def test_a_step_that_failed_says_so_in_place_of_a_figure_and_is_asked_again(open_page, address, step, asked):
    page = open_page(f"{address}/", may_complain=True)
    page.wait_for_selector(".sample")
    if step == 1:
        fail_once(page, asked)
    page.click("#tab-tour")
    for before in range(1, step):
        expect(page.locator("#tour-text p")).to_have_count(2)
        if before == step - 1:
            fail_once(page, asked)
        go_to(page, before + 1)
    expect(page.locator("#tour-text")).to_have_text("Internal error")
    expect(page.locator("#tour-figure > *")).to_have_count(0)
    go_to(page, step + 1)
    expect(page.locator("#tour-text p")).to_have_count(2)
    go_to(page, step)
    expect(page.locator("#tour-text p")).to_have_count(2)
    assert page.locator("#tour-figure canvas").count()


@pytest.mark.long
def test_title_text_and_figure_of_a_step_change_together(page):
    page.click("#tab-tour")
    for step in (2, 3):
        expect(page.locator("#tour-text p")).to_have_count(2)
        go_to(page, step)
    expect(page.locator("#tour-figure .curve")).to_be_visible()
    text, held = page.inner_text("#tour-text"), Held("**/explain*")
    held.hold(page)
    page.click("#tour-next")
    expect(page.locator("#tour-figure")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#tour-title")).to_have_text(TITLES[2])
    expect(page.locator("#tour-place")).to_have_text("Step 3 of 5")
    assert page.inner_text("#tour-text") == text
    held.release()
    expect(page.locator("#tour-title")).to_have_text(TITLES[3])
    assert page.inner_text("#tour-text") != text
    expect(page.locator("#tour-figure")).to_have_attribute("aria-busy", "false")


@pytest.fixture
def open_last_step(open_page, address) -> Callable[..., Page]:
    """Opens the page and goes to the last step, with the clock standing still."""

    def open_one(**options: object) -> Page:
        page = open_page(f"{address}/#tab=tour&step=4", wait_for="#tour-figure canvas", **options)
        page.clock.install(time=0)
        page.clock.pause_at(3600)  # seconds: not past yet, however slow the machine is
        go_to(page, 5)
        return page

    return open_one


def expect_iteration(page: Page, iteration: int) -> None:
    expect(page.locator("#tour .tour-said")).to_contain_text(f"Iteration {iteration}:")


def test_the_last_step_plays_the_iterations_once_and_again_when_asked(open_last_step):
    page = open_last_step()
    for _ in range(2):
        for iteration in (1, 2, 3):
            expect_iteration(page, iteration)
            page.clock.run_for(PLAY_MS)
        page.clock.run_for(5 * PLAY_MS)
        expect_iteration(page, 3)
        page.get_by_role("button", name="Play", exact=True).click()


def test_whoever_prefers_reduced_motion_sees_the_last_iteration_at_once(open_last_step):
    page = open_last_step(reduced_motion="reduce")
    expect_iteration(page, 3)
    page.clock.run_for(5 * PLAY_MS)
    expect_iteration(page, 3)
    page.get_by_role("button", name="Play", exact=True).click()
    expect_iteration(page, 1)


@pytest.mark.long
def test_the_last_step_stops_playing_when_another_view_is_shown_and_begins_again_afterwards(open_last_step):
    page = open_last_step()
    expect_iteration(page, 1)
    page.clock.run_for(PLAY_MS)
    expect_iteration(page, 2)
    page.click("#tab-explore")
    page.clock.run_for(5 * PLAY_MS)
    expect_iteration(page, 2)
    page.click("#tab-tour")
    expect_iteration(page, 1)
