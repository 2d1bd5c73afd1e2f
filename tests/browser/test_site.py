"""The page of the site in a browser: ONNX Runtime Web answers, also once there is no network."""

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import STRICT, serve_files
from tests.service.playground.test_explore import (
    CHANGED,
    Held,
    answer,
    choose_model,
    draw_every_digit,
    picture,
    sums,
)
from tests.service.playground.test_routing import explain_a_four, played
from tests.service.playground.test_tour import TITLES
from tests.support.accessibility import serious_findings
from tests.support.small_pictures import to_png
from training.data.synthetic.drawn_digits import draw_digits


@pytest.fixture
def page(open_page, site) -> Page:
    """The page, with capsnet-digits chosen."""
    page = open_page(f"{site}/")
    page.wait_for_selector(".sample")
    return page


@pytest.fixture
def cut_off(page) -> Page:
    """The page after an answer, then without a network."""
    page.click('[aria-label="Sample: 1"]')
    answer(page)
    page.click("#clear")
    expect(page.locator("#best")).to_be_empty()
    page.context.set_offline(True)
    return page


@pytest.mark.long
def test_at_least_nine_of_ten_drawn_digits_are_named_rightly_without_a_network(cut_off):
    named = draw_every_digit(cut_off)
    assert sum(name == str(digit) for digit, name in enumerate(named)) >= 9, named


def test_a_slider_changes_the_reconstruction_and_reset_brings_it_back(cut_off):
    cut_off.click('[aria-label="Sample: 7"]')
    answer(cut_off)
    before = picture(cut_off, "#decoded")
    cut_off.get_by_label("Dimension 3", exact=True).focus()
    for _ in range(15):
        cut_off.keyboard.press("ArrowRight")
    cut_off.wait_for_function(CHANGED, arg=["#decoded", before])
    cut_off.click("#reset")
    assert picture(cut_off, "#decoded") == before
    cut_off.click("#sheet")
    expect(cut_off.locator("#sheet-dialog")).to_be_visible()
    assert sum(sums(cut_off, "#sheet-picture")[:3]) > 0


def test_two_digits_are_taken_apart_without_a_network(page):
    choose_model(page, "capsnet-multimnist")
    page.click('[aria-label="Sample: 1 and 7"]')
    answer(page)
    page.context.set_offline(True)
    page.click('[aria-label="Sample: 3 and 8"]')
    expect(page.locator("#objects input")).to_have_count(2)
    expect(page.locator("#best")).to_contain_text("3")
    assert sorted(answer(page).split(" + ")) == ["3", "8"]
    red, _, blue, _ = sums(page, "#decoded")
    assert min(red, blue) > 5000


def test_a_toy_turns_and_the_distances_of_its_votes_are_shown(page):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    page.context.set_offline(True)
    before = picture(page, "#matrix")
    page.get_by_label("Azimuth").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(CHANGED, arg=["#matrix", before])
    page.click("#explain summary")
    expect(page.locator("#explain-steps input")).to_have_count(3)
    expect(page.locator("#explain-votes")).to_be_visible()
    expect(page.locator("#explain-layer option")).to_have_count(3)


def test_the_iterations_of_routing_are_played_without_a_network(cut_off):
    explain_a_four(cut_off)
    last = picture(cut_off, "#explain-heat")
    for iteration in played(cut_off):
        assert (picture(cut_off, "#explain-heat") == last) == (iteration == 2)


def test_the_tour_leads_to_its_end_without_a_network(cut_off):
    cut_off.click("#tab-tour")
    for number, title in enumerate(TITLES, start=1):
        expect(cut_off.locator("#tour-title")).to_have_text(title)
        expect(cut_off.locator("#tour-text p")).to_have_count(2)
        expect(cut_off.locator("#tour-figure canvas").first).to_be_visible()
        if number < len(TITLES):
            cut_off.click("#tour-next")
    expect(cut_off.locator("#tour-next")).to_be_disabled()


def test_files_are_scored_without_a_network_though_one_is_no_picture(cut_off, tmp_path):
    for index, digit in enumerate(draw_digits(np.arange(12) % 10, np.random.default_rng(5))):
        (tmp_path / f"{index % 10}_{index}.png").write_bytes(to_png(digit))
    (tmp_path / "notes.png").write_text("no picture")
    cut_off.click("#tab-score")
    cut_off.set_input_files("#score-files", sorted(tmp_path.iterdir()))
    expect(cut_off.locator("#score-said")).to_contain_text("13 of 13 files")
    assert "of 12 right" in cut_off.inner_text("#score-said")
    assert "1 not readable" in cut_off.inner_text("#score-said")
    assert "this browser finds no picture" in cut_off.locator("#scores-body tr").first.inner_text()


@pytest.mark.long
def test_a_model_that_has_not_come_is_told_in_words_and_may_be_chosen_again(open_page, site):
    page = open_page(f"{site}/", may_complain=True)
    page.click('[aria-label="Sample: 1"]')
    answer(page)
    page.context.set_offline(True)
    choose_model(page, "capsnet-multimnist")
    expect(page.locator("#notice")).to_contain_text("A file of this site cannot be loaded")
    page.context.set_offline(False)
    page.click('[aria-label="Sample: 3 and 8"]')
    expect(page.locator("#objects input")).to_have_count(2)
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda whole: whole[:-9], "it ends after"), (lambda whole: whole + b"9", "has more than")],
)
def test_weights_that_are_not_whole_are_told_in_words(open_page, site, site_folder, change, said):
    [weights] = site_folder.glob("models/capsnet-digits/*/weights.bin")
    page = open_page(
        f"{site}/",
        may_complain=True,
        prepare=lambda page: page.route(
            "**/capsnet-digits/*/weights.bin", lambda route: route.fulfill(body=change(weights.read_bytes()))
        ),
    )
    page.click('[aria-label="Sample: 1"]')
    expect(page.locator("#notice")).to_contain_text(said)
    expect(page.locator("#banner-progress")).to_be_empty()


def test_the_page_says_that_nothing_leaves_the_machine_and_shows_nothing_that_needs_the_service(page):
    expect(page.locator(".banner")).to_contain_text("nothing leaves your machine")
    expect(page.locator("#copy-curl")).to_be_hidden()
    expect(page.locator("#copy-python")).to_be_hidden()
    page.click('[aria-label="Sample: 1"]')
    answer(page)
    expect(page.locator("#banner-progress")).to_be_empty()
    assert not serious_findings(page)


def test_a_link_brings_back_the_image_and_the_sliders(open_page, site):
    page = open_page(f"{site}/", permissions=["clipboard-read", "clipboard-write"])
    page.click('[aria-label="Sample: 5"]')
    answer(page)
    page.get_by_label("Dimension 2", exact=True).focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#reset")).to_be_enabled()
    page.click("#share")
    expect(page.locator("#copied")).to_have_text("The link is copied")
    restored = open_page(page.evaluate("() => navigator.clipboard.readText()"))
    expect(restored.locator("#best")).to_have_text("5")
    expect(restored.get_by_label("Dimension 2", exact=True)).to_have_value("10")


@pytest.mark.long
def test_a_host_may_isolate_the_page_and_have_a_policy_of_its_own(open_page, site_folder):
    with serve_files(site_folder, STRICT) as address:
        page = open_page(f"{address}/")
        assert page.evaluate("() => crossOriginIsolated")
        page.click('[aria-label="Sample: 1"]')
        assert answer(page) == "1"
        page.close()


def test_a_model_that_is_downloaded_slowly_holds_up_no_other(page):
    page.click('[aria-label="Sample: 1"]')
    answer(page)
    weights = Held("**/capsnet-multimnist/*/weights.bin")
    weights.hold(page)
    with page.expect_request(weights.pattern):
        choose_model(page, "capsnet-multimnist")
    choose_model(page, "capsnet-digits")
    assert answer(page) == "1"
    weights.release()


def test_a_runtime_that_has_not_come_is_told_in_words_and_asked_for_again(open_page, site):
    failed = []

    def fail_once(route: Route) -> None:
        failed.append(route)
        route.abort() if len(failed) == 1 else route.continue_()

    page = open_page(f"{site}/", may_complain=True, prepare=lambda page: page.route("**/*.wasm", fail_once))
    page.click('[aria-label="Sample: 1"]')
    expect(page.locator("#notice")).to_contain_text("A file of this site cannot be loaded")
    page.click('[aria-label="Sample: 7"]')
    assert answer(page) == "7"


def test_two_downloads_are_both_told_until_they_end(page):
    script = """async (told) => {
        const { showProgress } = await import("/playground/scripts/banner.js");
        return told.map(([name, loaded]) => {
            showProgress({ name, loaded, total: 9e6 });
            return document.getElementById("banner-progress").textContent;
        });
    }"""
    said = page.evaluate(script, [["a", 1e6], ["b", 2e6], ["a", 9e6], ["b", 9e6]])
    a, b = "Loading a: 1 of 9 MB", "Loading b: 2 of 9 MB"
    assert said == [a, f"{a}, {b}", b, ""]
