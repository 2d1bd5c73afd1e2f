"""The guided tour, from its first step to its last."""

import re

import pytest
from playwright.sync_api import expect

from tests.service.playground.test_explore import CHANGED, picture
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


def test_a_digit_that_is_turned_keeps_its_length_while_its_pose_moves(page):
    page.click("#tab-tour")
    page.click("#tour-next")
    said = page.locator("#tour .tour-said")
    expect(said).to_contain_text("turned by 0°")
    page.get_by_role("slider", name="Turn").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#tour .turn").first).to_contain_text("15°")
    found = re.fullmatch(r"Length (\S+) \(at rest (\S+)\); direction turned by (\d+)°", said.inner_text())
    length, at_rest, degrees = (float(number) for number in found.groups())
    assert length == pytest.approx(at_rest, abs=0.1)
    assert degrees >= 5
    page.get_by_role("slider", name="Shift").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tour .turn").last).to_contain_text("1 px")


def test_the_first_step_moves_a_number_of_a_live_capsule(page):
    page.click("#tab-tour")
    expect(page.locator("#tour-text p")).to_have_count(2)
    decoded = "#tour-figure .tour-side canvas"
    before = picture(page, decoded)
    page.locator("#tour-figure .tour-side input").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.wait_for_function(CHANGED, arg=[decoded, before])
