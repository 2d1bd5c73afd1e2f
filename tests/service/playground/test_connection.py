"""A service that is busy, away, or wants a key."""

import io
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Route, expect

from tests.service.playground.test_explore import COUNT_READS, Held, answer, choose_model, press
from tests.support.live_service import free_port, live_service, settings_for, wait_until
from tests.support.pen import draw
from tests.support.small_pictures import to_png
from tests.support.tiny_bundle import write_bundle

KEY = "a-key-for-the-page"
MAY_COMPLAIN = True  # of answers that are errors


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_bundle(models / "tiny" / "1")
    return models


NOTE_NOTICES = """() => {
    const notice = document.querySelector("#notice");
    window.told = [];
    const note = () => notice.hidden || window.told.push(notice.innerText);
    new MutationObserver(note).observe(notice, { attributes: true });
}"""


@pytest.mark.parametrize("status", [503, 429])
def test_a_busy_service_or_one_that_limits_the_key_is_asked_again_quietly(page, status):
    refused = []

    def busy(route: Route) -> None:
        if refused:
            return route.continue_()
        refused.append(route)
        problem = '{"type": "/problems/overloaded", "title": "Too busy"}'
        headers = {"Retry-After": "1", "Content-Type": "application/problem+json"}
        return route.fulfill(status=status, headers=headers, body=problem)

    page.route("**/classify*", busy)
    page.evaluate(NOTE_NOTICES)
    page.click('[aria-label="Sample: 1"]')
    assert answer(page) == "1"
    assert refused
    assert not [told for told in page.evaluate("window.told") if "busy" in told]
    expect(page.locator("#notice")).to_be_hidden()


def test_an_error_of_the_service_is_shown_in_its_own_words_until_something_works(page, tmp_path):
    (tmp_path / "no.png").write_text("no picture")
    page.set_input_files("#file", tmp_path / "no.png")
    expect(page.locator("#notice")).to_contain_text("expected a PNG")
    page.click('[aria-label="Sample: 1"]')
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.parametrize("wrong", ["text", "4 x 4 pixels"])
def test_a_file_that_is_refused_takes_the_place_of_the_answer_before(page, tmp_path, wrong):
    page.click('[aria-label="Sample: 1"]')
    answer(page)
    file = tmp_path / "no.png"
    file.write_bytes(b"no picture" if wrong == "text" else to_png(np.zeros((4, 4), np.uint8)))
    page.set_input_files("#file", file)
    expect(page.locator("#notice")).to_be_visible()
    expect(page.locator("#best")).to_be_empty()
    expect(page.locator("#capsule")).to_be_hidden()
    expect(page.locator("#notice")).to_be_visible()


@pytest.mark.long
@pytest.mark.parametrize("goes_on", ["#clear", "#tab-tour", "#notice-close"])
def test_what_is_said_of_a_file_goes_when_somebody_goes_on(page, tmp_path, goes_on):
    (tmp_path / "no.png").write_text("no picture")
    page.set_input_files("#file", tmp_path / "no.png")
    expect(page.locator("#notice")).to_contain_text("expected a PNG")
    page.click(goes_on)
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.long
def test_a_picture_that_is_too_large_for_the_service_is_not_decoded_for_the_page_either(page):
    page.evaluate(COUNT_READS)
    file = io.BytesIO()
    Image.new("1", (8000, 7000)).save(file, "PNG")
    page.set_input_files("#file", {"name": "large.png", "mimeType": "image/png", "buffer": file.getvalue()})
    expect(page.locator("#notice")).to_contain_text("8000x7000")
    assert page.evaluate("window.reads") == 0


@pytest.mark.long
def test_a_notice_moves_nothing_under_the_pen(page):
    page.route("**/classify*", lambda route: route.abort())
    before = page.locator("#pad").bounding_box()
    press(page)
    expect(page.locator("#notice")).to_contain_text("The connection is lost")
    assert page.locator("#pad").bounding_box() == before


@pytest.mark.long
def test_an_answer_that_does_not_come_leaves_the_one_before_marked_as_busy(page):
    page.click('[aria-label="Sample: 1"]')
    answer(page)
    held = Held("**/classify*")
    held.hold(page)
    page.click('[aria-label="Sample: 7"]')
    for part in (".seen", ".answer", "#capsule"):
        expect(page.locator(part)).to_have_attribute("aria-busy", "true")
    held.release()
    expect(page.locator("#best")).to_have_text("7")
    for part in (".seen", ".answer", "#capsule"):
        expect(page.locator(part)).to_have_attribute("aria-busy", "false")


def test_a_service_that_is_restarted_is_said_to_be_away_and_then_answers(open_page, models):
    port = free_port()
    settings = settings_for(models, optimize=False)
    with live_service(settings, port=port) as client:
        page = open_page(f"{str(client.base_url).rstrip('/')}/", may_complain=True)
        page.set_input_files("#file", "docs/three.png")
        answer(page)
    page.set_input_files("#file", "docs/seven.jpg")
    expect(page.locator("#notice")).to_contain_text("The connection is lost")
    with live_service(settings, port=port):
        expect(page.locator("#notice")).to_be_hidden(timeout=20_000)
        answer(page)


@pytest.mark.long
@pytest.mark.parametrize("status", [502, 504])
def test_a_proxy_that_does_not_reach_the_service_is_asked_again_like_a_service_that_is_away(page, status):
    is_away = True

    def proxy(route: Route) -> None:
        if not is_away:
            return route.continue_()
        return route.fulfill(status=status, content_type="text/html", body="<h1>Bad gateway</h1>")

    page.route("**/classify*", proxy)
    page.click('[aria-label="Sample: 1"]')
    expect(page.locator("#notice")).to_contain_text("The connection is lost")
    is_away = False
    assert answer(page) == "1"
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.long
def test_a_deadline_that_the_service_misses_is_its_answer(page):
    missed = {
        "type": "/problems/deadline-exceeded",
        "title": "No result in time",
        "status": 504,
        "detail": "It took too long.",
    }
    page.route("**/classify*", lambda route: route.fulfill(status=504, json=missed))
    page.click('[aria-label="Sample: 1"]')
    expect(page.locator("#notice")).to_have_text("No result in time: It took too long.")


VERSIONS = {1: ["a", "b", "c"], 2: ["d", "e", "f"]}  # the classes of each


def write_versions(models: Path) -> None:
    for version, names in VERSIONS.items():
        write_bundle(models / "tiny" / str(version), seed=version, classes=tuple(names))


@pytest.mark.long
def test_the_page_begins_with_the_version_that_is_pinned(open_page, tmp_path):
    write_versions(tmp_path)
    (tmp_path / "tiny" / "traffic.json").write_text('{"pinned": 1}')
    with live_service(settings_for(tmp_path, optimize=False)) as client:
        page = open_page(f"{str(client.base_url).rstrip('/')}/")
        expect(page.locator("#versions")).to_have_value("1")
        expect(page.locator("#bars .name")).to_have_text(VERSIONS[1])
        page.select_option("#versions", "2")
        expect(page.locator("#bars .name")).to_have_text(VERSIONS[2])
        expect(page.locator("#versions")).to_have_value("2")


def test_a_key_is_asked_for_kept_for_the_tab_and_asked_for_again_when_it_is_refused(open_page, models):
    with live_service(settings_for(models, api_keys=KEY, optimize=False), ready=False) as client:
        address = str(client.base_url).rstrip("/")
        page = open_page(f"{address}/", may_complain=True, wait_for="#key-dialog")
        page.fill("#key", "a wrong one")
        page.keyboard.press("Enter")
        expect(page.locator("#key-refused")).to_be_visible()
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".model")).to_have_count(1)
        page.reload()
        expect(page.locator(".model")).to_have_count(1)
        assert page.evaluate("localStorage.length") == 0


BLOCKED = """Object.defineProperty(window, "sessionStorage", {
    get() { throw new DOMException("Access is denied", "SecurityError"); },
})"""


def test_a_browser_that_blocks_site_data_keeps_a_key_until_the_page_is_left(open_page, models):
    with live_service(settings_for(models, api_keys=KEY, optimize=False), ready=False) as client:
        page = open_page(
            f"{str(client.base_url).rstrip('/')}/",
            may_complain=True,
            wait_for="#key-dialog[open]",
            prepare=lambda page: page.add_init_script(BLOCKED),
        )
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".model")).to_have_count(1)
        page.set_input_files("#file", "docs/seven.jpg")
        answer(page)
        expect(page.locator("#key-dialog")).to_be_hidden()


@pytest.mark.long
def test_a_browser_of_2023_asks_for_a_key(open_page, models):
    with live_service(settings_for(models, api_keys=KEY, optimize=False), ready=False) as client:
        page = open_page(
            f"{str(client.base_url).rstrip('/')}/",
            may_complain=True,
            wait_for="#key-dialog",
            prepare=lambda page: page.add_init_script("delete Promise.withResolvers"),
        )
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".model")).to_have_count(1)


@pytest.mark.long
def test_the_dialog_takes_only_what_a_header_can_hold_and_stays_until_there_is_a_key(open_page, models):
    with live_service(settings_for(models, api_keys=KEY, optimize=False), ready=False) as client:
        address = str(client.base_url).rstrip("/")
        page = open_page(f"{address}/", may_complain=True, wait_for="#key-dialog")
        page.fill("#key", "schlüssel→")
        page.keyboard.press("Enter")
        assert page.locator("#key").evaluate("key => key.validity.patternMismatch")
        for _ in range(3):
            page.keyboard.press("Escape")
        expect(page.locator("#key-dialog")).to_be_visible()
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".model")).to_have_count(1)
        expect(page.locator("#key-dialog")).to_be_hidden()


ASK = """async () => {
    const { request } = await import("/playground/scripts/transport.js");
    window.answered = false;
    request("models/tiny").then(() => (window.answered = true));
}"""


@pytest.mark.long
def test_a_key_is_not_dropped_because_a_request_without_it_is_refused_later(open_page, models):
    with live_service(settings_for(models, api_keys=KEY, optimize=False), ready=False) as client:
        address = str(client.base_url).rstrip("/")
        page = open_page(f"{address}/", may_complain=True, wait_for="#key-dialog")
        held: list[Route] = []
        page.route("**/models/tiny", lambda route: route.continue_() if held else held.append(route))
        with page.expect_request("**/models/tiny"):
            page.evaluate(ASK)
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".model")).to_have_count(1)
        held[0].continue_()  # its headers are those of the time before the key
        page.wait_for_function("() => window.answered")
        expect(page.locator("#key-dialog")).to_be_hidden()
        assert page.evaluate("sessionStorage.getItem('capsnet-api-key')") == KEY


@pytest.mark.long
def test_a_drawing_whose_last_question_failed_is_asked_again_when_the_pen_is_lifted(page):
    failed: list[Route] = []

    def fail(route: Route) -> None:
        failed.append(route)
        route.fulfill(status=500, json={"title": f"Fault {len(failed)}", "status": 500})

    page.route("**/classify*", fail)
    box = page.locator("#pad").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 230)
    expect(page.locator("#notice")).to_contain_text("Fault 2")
    page.unroute("**/classify*")
    page.mouse.up()
    assert answer(page) == "1"


@pytest.mark.long
def test_a_file_that_is_gone_is_told_apart_from_a_lost_connection(page, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(to_png(np.eye(28, dtype=np.uint8) * 255))
    devtools = page.context.new_cdp_session(page)  # Playwright itself would give the page a copy
    root = devtools.send("DOM.getDocument")["root"]["nodeId"]
    node = devtools.send("DOM.querySelector", {"nodeId": root, "selector": "#file"})["nodeId"]
    devtools.send("DOM.setFileInputFiles", {"nodeId": node, "files": [str(file)]})
    answer(page)
    file.unlink()
    choose_model(page, "capsnet-mnist")
    expect(page.locator("#notice")).to_contain_text("a.png has changed or is gone: open it again")


@pytest.mark.long
def test_what_is_said_of_a_slow_answer_goes_with_the_question(page):
    held = Held("**/classify*")
    held.hold(page)
    page.click('[aria-label="Sample: 1"]')
    expect(page.locator("#notice")).to_contain_text("Waiting for the service")
    page.click("#clear")
    expect(page.locator("#notice")).to_be_hidden()
    held.release()


@pytest.mark.long
def test_while_no_model_is_served_the_page_says_so_and_goes_on_with_the_first(open_page, address):
    none = {"models": []}
    page = open_page(
        f"{address}/",
        wait_for="#notice:not([hidden])",
        prepare=lambda page: page.route("**/models", lambda route: route.fulfill(json=none)),
    )
    expect(page.locator("#notice")).to_contain_text("No model is served at present")
    page.unroute("**/models")
    expect(page.locator(".model")).not_to_have_count(0)
    expect(page.locator("#notice")).to_be_hidden()


@pytest.fixture
def replaced(tmp_path):
    """The address of a service, and what makes it serve version 2 in place of version 1."""
    served, new = tmp_path / "served" / "tiny", write_bundle(tmp_path / "new" / "tiny" / "2", seed=2)
    write_bundle(served / "1")
    with live_service(settings_for(served.parent, rescan_s=0.1, optimize=False)) as client:

        def replace() -> None:
            new.rename(served / "2")
            shutil.rmtree(served / "1")
            wait_until(lambda: versions(client) == [2])

        yield str(client.base_url).rstrip("/"), replace


def versions(client: httpx.Client) -> list[int]:
    """Those of `tiny` that are loaded."""
    listed = client.get("/models/tiny").json()["versions"]
    return sorted(one["version"] for one in listed if one["state"] == "loaded")


@pytest.mark.parametrize("view", ["explore", "score"])
def test_the_version_that_took_the_place_of_the_chosen_one_answers_and_is_named(open_page, replaced, view):
    address, replace = replaced
    page = open_page(f"{address}/#tab={view}", may_complain=True)
    expect(page.locator("#score-model")).to_contain_text("tiny")
    replace()
    page.set_input_files("#file" if view == "explore" else "#score-files", "docs/seven.jpg")
    expect(page.locator("#notice")).to_have_text("Version 1 of tiny is not served. This is version 2.")
    if view == "explore":
        answer(page)
    else:
        page.set_input_files("#score-files", "docs/seven.jpg")
        expect(page.locator("#score-said")).to_contain_text("tiny version 2 · 1 of 1 files")
    expect(page.locator("#notice")).to_be_visible()


@pytest.mark.parametrize("what", ["slider", "sheet", "class", "votes"])
def test_a_version_that_is_gone_is_replaced_whatever_somebody_does_next(open_page, replaced, what):
    address, replace = replaced
    page = open_page(f"{address}/", may_complain=True)
    page.set_input_files("#file", "docs/seven.jpg")
    answer(page)
    replace()
    if what == "slider":
        page.locator("#sliders input").first.focus()
        page.keyboard.press("ArrowRight")
    elif what == "class":
        page.locator("#bars input:not(:checked)").last.check()
    else:
        page.click({"sheet": "#sheet", "votes": "#explain summary"}[what])
    expect(page.locator("#notice")).to_have_text("Version 1 of tiny is not served. This is version 2.")
    answer(page)


@pytest.mark.long
def test_an_answer_that_is_cut_short_is_asked_for_again(open_page, tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    with live_service(settings_for(tmp_path)) as client:
        page = open_page(f"{str(client.base_url).rstrip('/')}/", may_complain=True)
        whole = "async () => { const {request} = await import('/playground/scripts/transport.js'); "
        script = (
            whole
            + """
            const [fetched, asked] = [window.fetch, []];
            window.fetch = async (...given) => {
                asked.push(given);
                const answer = await fetched(...given);
                if (asked.length === 1) answer.json = () => Promise.reject(new TypeError("network error"));
                return answer;
            };
            return [(await request("models")).models.length, asked.length];
        }"""
        )
        assert page.evaluate(script) == [1, 2]


@pytest.mark.long
def test_a_model_that_is_gone_is_not_shown_as_chosen(page):
    gone = {
        "type": "/problems/unknown-model",
        "title": "Unknown model",
        "status": 404,
        "detail": "It is gone.",
    }
    page.route("**/models/capsnet-mnist", lambda route: route.fulfill(status=404, json=gone))
    page.locator('input[value="capsnet-mnist"]').click()
    expect(page.locator("#notice")).to_contain_text("It is gone.")
    expect(page.locator('input[value="capsnet-digits"]')).to_be_checked()


@pytest.mark.long
def test_without_the_sample_digits_the_page_works_and_the_tour_once_they_come(open_page, address):
    missing = []

    def fail_once(route: Route) -> None:
        missing.append(route)
        route.abort() if len(missing) == 1 else route.continue_()

    page = open_page(
        f"{address}/", may_complain=True, prepare=lambda page: page.route("**/digits.json", fail_once)
    )
    draw(page, 1)
    assert answer(page) == "1"
    page.click("#tab-tour")
    expect(page.locator("#tour-figure canvas").first).to_be_visible()


@pytest.mark.long
def test_the_list_of_versions_keeps_the_focus_and_shows_the_one_in_use(open_page, tmp_path):
    write_versions(tmp_path)
    with live_service(settings_for(tmp_path)) as client:
        page = open_page(f"{str(client.base_url).rstrip('/')}/", may_complain=True)
        versions = page.locator("#versions")
        expect(versions).to_have_value("2")
        versions.focus()
        versions.select_option("1")
        expect(page.locator("#bars .name")).to_have_text(VERSIONS[1])
        expect(versions).to_have_value("1")
        expect(versions).to_be_focused()
        page.route("**/models/tiny", lambda route: route.fulfill(status=404, json={"detail": "It is gone."}))
        versions.select_option("2")
        expect(page.locator("#notice")).to_contain_text("It is gone.")
        expect(versions).to_have_value("1")


def test_what_fails_at_the_start_is_told(open_page, address):
    problem = '{"title": "The models are locked away", "status": 500}'
    headers = {"Content-Type": "application/problem+json"}
    page = open_page(
        f"{address}/",
        wait_for="#notice:not([hidden])",
        prepare=lambda page: page.route(
            "**/models", lambda route: route.fulfill(status=500, headers=headers, body=problem)
        ),
        may_complain=True,
    )
    expect(page.locator("#notice")).to_contain_text("The models are locked away")


def test_toys_that_do_not_come_are_told_and_asked_for_again(open_page, address):
    page = open_page(f"{address}/", may_complain=True)
    page.route("**/samples/*.webp", lambda route: route.abort())
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#notice")).to_contain_text("The connection is lost. Trying again")
    faults = []
    page.on("pageerror", lambda error: faults.append(error))
    page.get_by_label("Azimuth").focus()
    page.keyboard.press("ArrowRight")
    page.unroute("**/samples/*.webp")
    expect(page.locator("#toys .toy")).to_have_count(5)
    expect(page.locator("#notice")).to_be_hidden()
    assert answer(page) == "truck"
    assert not faults


def test_toys_that_the_service_refuses_are_told(open_page, address):
    page = open_page(f"{address}/", may_complain=True)
    page.route("**/samples/*.webp", lambda route: route.fulfill(status=404))
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#notice")).to_contain_text("The service answered 404")


def test_a_service_that_asks_for_a_longer_wait_is_told_of_at_once(page):
    def busy(route: Route) -> None:
        problem = '{"type": "/problems/key-rate", "title": "Too many requests"}'
        headers = {"Retry-After": "5", "Content-Type": "application/problem+json"}
        route.fulfill(status=429, headers=headers, body=problem)

    page.route("**/classify*", busy)
    page.click('[aria-label="Sample: 1"]')
    expect(page.locator("#notice")).to_contain_text("The service is busy", timeout=9000)
