"""The iterations of routing, shown and played."""

from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.service.playground.test_explore import CHANGED, Held, answer, choose_model, picture, press
from tests.support.accessibility import serious_findings
from tests.support.live_service import live_service, settings_for
from tests.support.tiny_bundle import write_bundle

PLAY_MS = 900  # of each iteration


def explain_a_four(page: Page) -> None:
    """Open the explanation of a sample, whose last iteration is shown."""
    page.click('[aria-label="Sample: 4"]')
    answer(page)
    page.click("#explain summary")
    expect(page.locator("#explain-steps input")).to_have_count(3)


def stop_the_clock(page: Page) -> None:
    page.clock.install(time=0)
    page.clock.pause_at(3600)  # seconds: not past yet, however slow the machine is


def played(page: Page) -> Iterator[int]:
    """Play the iterations; each as soon as the page shows it, with the clock standing still."""
    stop_the_clock(page)
    page.click("#explain-play")
    for iteration in range(3):
        expect(page.locator("#explain-steps input").nth(iteration)).to_be_checked()
        yield iteration
        page.clock.run_for(PLAY_MS)


def test_the_iterations_of_a_digit_are_played_over_its_image(page):
    explain_a_four(page)
    expect(page.locator("#explain-numbers")).to_contain_text("Entropy of the couplings")
    assert page.locator("#explain-steps input").nth(2).is_checked()
    last, lengths = picture(page, "#explain-heat"), page.inner_text("#explain-bars")
    for iteration in played(page):
        assert (picture(page, "#explain-heat") == last) == (iteration == 2)
        assert (page.inner_text("#explain-bars") == lengths) == (iteration == 2)
    page.clock.resume()
    expect(page.locator("#explain-steps input").nth(2)).to_be_checked()
    page.select_option("#explain-class", "9")
    assert picture(page, "#explain-heat") != last
    assert not serious_findings(page)


def test_of_matrix_capsules_the_distances_of_the_votes_are_shown(page):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    page.click("#explain summary")
    expect(page.locator("#explain-steps input")).to_have_count(3)
    before = picture(page, "#explain-votes")
    page.locator("#explain-steps input").nth(0).check()
    page.wait_for_function(CHANGED, arg=["#explain-votes", before])
    expect(page.locator("#explain-against")).to_be_hidden()


def bars(layer: dict, iteration: int) -> list[str]:
    """The mean activations of the five types of a layer that vary most, as the page writes them."""
    activations = np.array(layer["activations"])  # [T, types, R, R]
    order = np.argsort(-activations[-1].var(axis=(1, 2)), kind="stable")
    return [f"{value:.2f}" for value in activations[iteration].mean(axis=(1, 2))[order][:5]]


@pytest.mark.parametrize(("index", "places"), [(0, "6 × 6"), (1, "4 × 4")])
def test_a_convolutional_layer_of_matrix_capsules_can_be_chosen(page, index, places):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    with page.expect_response("**/explain*") as response:
        page.click("#explain summary")
    layer = response.value.json()["layers"][index]
    expect(page.locator("#explain-layer option")).to_have_count(3)
    classes = picture(page, "#explain-heat")
    page.select_option("#explain-layer", label=f"Capsule layer {index + 1}, {places}")
    expect(page.locator("#explain-class option")).to_have_count(16)
    assert picture(page, "#explain-heat") != classes
    for iteration in (2, 1, 0):
        page.locator("#explain-steps input").nth(iteration).check()
        expect(page.locator("#explain-bars .value")).to_have_text(bars(layer, iteration))
        entropy = f"Entropy of the assignments: {layer['entropy'][iteration]:.4f} of 1"
        expect(page.locator("#explain-numbers")).to_contain_text(entropy)
    most_active = picture(page, "#explain-heat"), picture(page, "#explain-votes")
    page.locator("#explain-class").select_option(index=5)
    assert (picture(page, "#explain-heat"), picture(page, "#explain-votes")) != most_active
    assert not serious_findings(page)
    with page.expect_response("**/explain*") as response:
        page.check('#toys input[value="car"]')
    layer = response.value.json()["layers"][index]
    expect(page.locator("#explain-bars .value")).to_have_text(bars(layer, -1))
    expect(page.locator("#explain-layer")).to_have_value(layer["name"])
    page.select_option("#explain-layer", "classes")
    expect(page.locator("#explain-class option")).to_have_count(5)
    choose_model(page, "capsnet-mnist")
    page.click('[aria-label="Sample: 4"]')
    expect(page.locator("#explain-class")).to_have_value("4")
    expect(page.locator("#explain-layer")).to_be_hidden()


def test_another_image_is_explained_as_soon_as_it_is_answered(page):
    page.click('[aria-label="Sample: 4"]')
    answer(page)
    page.click("#explain summary")
    expect(page.locator("#explain-class")).to_have_value("4")
    page.click('[aria-label="Sample: 0"]')
    expect(page.locator("#explain-class")).to_have_value("0")


@pytest.mark.long
def test_until_another_image_is_explained_the_panel_is_marked_as_busy(page):
    explain_a_four(page)
    held = Held("**/explain*")
    held.hold(page)
    page.click('[aria-label="Sample: 7"]')
    expect(page.locator("#explain-body")).to_have_attribute("aria-busy", "true")
    held.release()
    expect(page.locator("#explain-class")).to_have_value("7")
    expect(page.locator("#explain-body")).to_have_attribute("aria-busy", "false")


def draw_on(page: Page) -> None:
    """Draw the first line of a further stroke; the pen stays down."""
    page.locator("#pad").scroll_into_view_if_needed()
    box = page.locator("#pad").bounding_box()
    press(page)
    with page.expect_response("**/classify*"):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10, steps=5)


def test_an_explanation_that_is_late_for_somebody_who_draws_on_is_not_shown(page):
    explain_a_four(page)
    held = Held("**/explain*")
    held.hold(page)
    with page.expect_request("**/explain*"):
        page.click('[aria-label="Sample: 7"]')
    answer(page)
    with page.expect_event("requestfailed", lambda request: "/explain" in request.url):
        draw_on(page)
    held.release()
    expect(page.locator("#explain-body")).to_have_attribute("aria-busy", "true")
    with page.expect_response("**/explain*"):
        page.mouse.up()
    expect(page.locator("#explain-body")).to_have_attribute("aria-busy", "false")


def test_a_panel_that_is_opened_while_somebody_draws_explains_the_drawing_alone(page):
    page.click('[aria-label="Sample: 4"]')
    answer(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/explain" in request.url else None)
    draw_on(page)
    expect(page.locator("#explain-body")).to_have_attribute("aria-busy", "true")
    page.evaluate("document.querySelector('#explain').open = true")
    page.mouse.up()
    expect(page.locator("#explain-steps input")).to_have_count(3)
    assert len(asked) == 1


def test_a_panel_that_is_closed_and_opened_while_it_waits_asks_once(page):
    page.click('[aria-label="Sample: 4"]')
    answer(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/explain" in request.url else None)
    held = Held("**/explain*")
    held.hold(page)
    for _ in ("open", "close", "open"):
        page.click("#explain summary")
    held.release()
    expect(page.locator("#explain-steps input")).to_have_count(3)
    assert len(asked) == 1


@pytest.mark.long
def test_an_explanation_of_another_image_is_not_there_when_the_panel_is_opened(page):
    explain_a_four(page)
    page.click("#explain summary")
    page.click('[aria-label="Sample: 7"]')
    expect(page.locator("#best")).to_have_text("7")
    held = Held("**/explain*")
    held.hold(page)
    with page.expect_request("**/explain*"):
        page.click("#explain summary")
    expect(page.locator("#explain-body")).to_be_hidden()
    held.release()
    expect(page.locator("#explain-class")).to_have_value("7")


@pytest.fixture
def without_graph(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    with live_service(settings_for(tmp_path, optimize=False)) as client:
        yield str(client.base_url).rstrip("/")


def test_a_bundle_without_the_graph_is_told_to_be_exported_again(open_page, without_graph):
    page = open_page(f"{without_graph}/", may_complain=True)
    page.set_input_files("#file", "docs/seven.jpg")
    answer(page)
    page.click("#explain summary")
    expect(page.locator("#explain-note")).to_contain_text("capsnet-export bundle")
    expect(page.locator("#explain-body")).to_be_hidden()


@pytest.mark.long
def test_an_iteration_that_is_chosen_or_another_image_ends_the_playing(page):
    explain_a_four(page)
    stop_the_clock(page)
    page.click("#explain-play")
    page.locator("#explain-steps input").nth(1).check()
    page.clock.run_for(5 * PLAY_MS)
    expect(page.locator("#explain-steps input").nth(1)).to_be_checked()
    page.click("#explain-play")
    page.click('[aria-label="Sample: 7"]')
    expect(page.locator("#explain-class")).to_have_value("7")
    page.clock.run_for(PLAY_MS)
    expect(page.locator("#explain-steps input").nth(2)).to_be_checked()


@pytest.mark.long
def test_an_explanation_that_comes_late_is_not_that_of_another_image(page):
    page.click('[aria-label="Sample: 4"]')
    answer(page)
    held = Held("**/explain*")
    held.hold(page)
    page.click("#explain summary")
    page.click("#explain summary")
    page.click('[aria-label="Sample: 7"]')
    expect(page.locator("#best")).to_have_text("7")
    held.release()
    page.click("#explain summary")
    expect(page.locator("#explain-class")).to_have_value("7")


PLAY_ONE = """async () => {
    const { Player } = await import("/playground/scripts/player.js");
    window.shown = [];
    new Player().play(1, (iteration) => window.shown.push(iteration));
}"""


def test_a_single_iteration_is_shown_once(page):
    page.clock.install(time=0)
    page.evaluate(PLAY_ONE)
    page.clock.run_for(5 * PLAY_MS)
    assert page.evaluate("window.shown") == [0]


def test_the_largest_of_more_numbers_than_a_call_may_have_is_found(page):
    script = """async () => {
        const { largest } = await import("/playground/scripts/heat.js");
        return largest([new Array(300000).fill(0.5), [-2]]);
    }"""
    assert page.evaluate(script) == 2
