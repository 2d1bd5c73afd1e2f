"""The view that classifies many files."""

import base64
import codecs
import csv
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Download, Page, Route, expect

from service.score.table import FORMULA_STARTS
from tests.service.playground.test_explore import Held, choose_model
from tests.support.small_pictures import to_png
from training.data.synthetic.drawn_digits import draw_digits

MAY_COMPLAIN = True  # of the answer to the file that is no picture


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """50 digits that carry their labels in their names, and a file that is no picture."""
    folder = tmp_path_factory.mktemp("digits")
    labels = np.arange(50) % 10
    made = []
    for index, picture in enumerate(draw_digits(labels, np.random.default_rng(5))):
        made.append(folder / f"{labels[index]}_{index}.png")
        made[-1].write_bytes(to_png(picture))
    made.append(folder / "notes.png")
    made[-1].write_text("no picture")
    return made


def rows_of(download: Download) -> list[dict[str, str]]:
    """Of a CSV file that spreadsheets open in UTF-8, since it begins with a byte order mark."""
    path = Path(download.path())
    assert path.read_bytes().startswith(codecs.BOM_UTF8)
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_fifty_files_are_scored_judged_and_saved_though_one_is_no_picture(page, files):
    page.click("#tab-score")
    page.set_input_files("#score-files", files)
    expect(page.locator("#score-said")).to_contain_text("51 of 51 files")
    said = page.inner_text("#score-said")
    assert "of 50 right" in said
    assert "1 not readable" in said
    right = int(said.split("·")[2].split()[0])
    assert right >= 35  # of digits that are no MNIST
    assert page.locator("#scores-body tr").count() == 51
    assert "notes.png" in page.locator("#scores-body tr").first.inner_text(), "the doubtful ones come first"
    diagonal = page.locator("#confusion td.right").all_inner_texts()
    assert sum(map(int, diagonal)) == right

    page.click('[data-sort="name"]')
    assert "0_0.png" in page.locator("#scores-body tr").first.inner_text()
    page.click('[data-sort="name"]')
    assert "notes.png" in page.locator("#scores-body tr").first.inner_text()

    with page.expect_download() as download:
        page.click("#score-csv")
    rows = rows_of(download.value)
    assert len(rows) == 51
    assert sum(row["label"] == row["truth"] != "" for row in rows) == right
    assert [row["file"] for row in rows if row["error"]] == ["notes.png"]


def test_names_that_a_spreadsheet_would_compute_get_an_apostrophe(page):
    names = [f"{start}1+1,a.png" for start in FORMULA_STARTS]
    [digit] = draw_digits(np.arange(1), np.random.default_rng(5))
    given = [{"name": name, "mimeType": "image/png", "buffer": to_png(digit)} for name in [*names, "0_a.png"]]
    page.click("#tab-score")
    page.set_input_files("#score-files", given)
    expect(page.locator("#score-said")).to_contain_text("7 of 7 files")
    with page.expect_download() as download:
        page.click("#score-csv")
    rows = rows_of(download.value)
    assert {row["file"] for row in rows} == {f"'{name}" for name in names} | {"0_a.png"}
    assert all(0 <= float(row["probability"]) <= 1 for row in rows)


LABELS = {
    "7/a.png": "7", "test/7/12.png": "7", "7_a.png": "7", "a-7.png": "7", "a-7-3.png": None, "77.png": None,
    "scan.png": None, "3/7.png": "3", "8.png": "8", "7_a_3.png": "7", "x/1/2/y.png": "2",
}  # fmt: skip
NUMBERED = {f"{number}.png": None for number in range(30)} | {"3/30.png": "3"}


@pytest.mark.parametrize("labels", [LABELS, NUMBERED], ids=["labeled", "numbered"])
def test_a_label_is_read_from_a_folder_or_a_name_if_most_names_have_one(page, labels):
    script = "async (given) => (await import('/playground/scripts/labels.js')).labelsOf(...given)"
    classes = [str(digit) for digit in range(10)]
    assert page.evaluate(script, [list(labels), classes]) == list(labels.values())


def test_a_label_is_found_however_its_accents_are_written(page):
    script = "async (given) => (await import('/playground/scripts/labels.js')).labelsOf(...given)"
    composed, decomposed, marked = "\u00c4pfel", "A\u0308pfel", "\u0939\u093f\u0928\u094d\u0926\u0940"
    paths = [f"{decomposed}/1.png", f"{decomposed}-1.png", f"{marked}_1.png"]
    assert page.evaluate(script, [paths, [composed, marked]]) == [composed, composed, marked]


def test_a_part_of_a_class_name_is_not_taken_for_a_class(page):
    script = "async (given) => (await import('/playground/scripts/labels.js')).labelsOf(...given)"
    labels = {
        "sports_car_1.png": "sports_car", "sports_car.png": "sports_car", "a-sports_car.png": "sports_car",
        "car_1.png": "car", "car-sports_car.png": "car", "C++_1.png": "C++", "C_1.png": "C",
    }  # fmt: skip
    classes = ["car", "sports_car", "C", "C++"]
    assert page.evaluate(script, [list(labels), classes]) == list(labels.values())


def fail(route: Route) -> None:
    problem = '{"title": "Internal error", "status": 500}'
    route.fulfill(status=500, headers={"Content-Type": "application/problem+json"}, body=problem)


def test_what_took_too_long_to_send_is_sent_in_halves(page, files):
    asked = []

    def take_few(route: Route) -> None:
        asked.append(route.request.post_data_buffer.count(b'filename="'))
        if asked[-1] <= 2:
            return route.continue_()
        problem = '{"type": "/problems/slow-body", "title": "The body arrived too slowly", "status": 408}'
        return route.fulfill(status=408, headers={"Content-Type": "application/problem+json"}, body=problem)

    page.route("**/classify*", take_few)
    page.click("#tab-score")
    page.set_input_files("#score-files", files[:5])
    expect(page.locator("#score-said")).to_contain_text("5 of 5 files")
    assert page.locator("#scores-body td.error").count() == 0
    assert sorted(asked) == [1, 2, 2, 3, 5]


def test_large_files_are_sent_in_requests_that_a_service_takes(page, files, tmp_path):
    asked = []
    page.on("request", lambda request: "/classify" in request.url and asked.append(request))
    large = [tmp_path / file.name for file in files[:8]]
    for file, digit in zip(large, files, strict=False):
        file.write_bytes(digit.read_bytes() + bytes(5 * 2**20))  # which no reader of PNG looks at
    page.click("#tab-score")
    page.set_input_files("#score-files", large)
    expect(page.locator("#score-said")).to_contain_text("8 of 8 files")
    sizes = [int(request.all_headers()["content-length"]) for request in asked]
    assert [round(size / 2**20) for size in sizes] == [20, 20]


def test_a_model_that_is_refused_is_no_fault_of_the_files(page, files):
    asked = []

    def refuse(route: Route) -> None:
        asked.append(route)
        problem = '{"type": "/problems/refused-model", "title": "The model is refused", "status": 422}'
        route.fulfill(status=422, headers={"Content-Type": "application/problem+json"}, body=problem)

    page.route("**/classify*", refuse)
    page.click("#tab-score")
    page.set_input_files("#score-files", files)
    said = "capsnet-digits version 1 · 0 of 51 files · 0 doubtful · The model is refused"
    expect(page.locator("#score-said")).to_have_text(said)
    assert len(asked) <= 2


def test_an_error_of_the_service_ends_the_scoring_and_stays_to_be_read(page, files):
    page.route("**/classify*", fail)
    page.click("#tab-score")
    page.set_input_files("#score-files", files)
    expect(page.locator("#score-said")).to_contain_text("Internal error")
    expect(page.locator("#score-stop")).to_be_hidden()
    said = "capsnet-digits version 1 · 0 of 51 files · 0 doubtful · Internal error"
    expect(page.locator("#score-said")).to_have_text(said)
    expect(page.locator("#score-spoken")).to_have_text(said)


@pytest.mark.long
@pytest.mark.parametrize("by", ["stop", "another model"])
def test_a_scoring_that_is_ended_says_so_and_names_its_model(page, files, by):
    held = Held("**/classify*")
    held.hold(page)
    page.click("#tab-score")
    with page.expect_request("**/classify*"):
        page.set_input_files("#score-files", files)
    expect(page.locator("#score-said")).to_contain_text("0 of 51 files")
    expect(page.locator("#score-spoken")).to_be_empty()  # spoken once, at the end
    if by == "stop":
        page.click("#score-stop")
    else:
        choose_model(page, "capsnet-multimnist")
    said = "capsnet-digits version 1 · stopped after 0 of 51 files · 0 doubtful"
    expect(page.locator("#score-said")).to_have_text(said)
    expect(page.locator("#score-spoken")).to_have_text(said)
    held.release()


@pytest.mark.long
def test_files_that_are_given_while_others_are_scored_take_their_place(page, files):
    held = Held("**/classify*")
    held.hold(page)
    page.click("#tab-score")
    with page.expect_request("**/classify*"):
        page.set_input_files("#score-files", files)
    with page.expect_event("requestfailed"):
        page.set_input_files("#score-files", files[:3])
    expect(page.locator("#score-stop")).to_be_visible()
    expect(page.locator("#score-progress")).to_have_attribute("max", "3")
    held.release()
    expect(page.locator("#score-said")).to_contain_text("3 of 3 files")
    expect(page.locator("#score-stop")).to_be_hidden()
    expect(page.locator("#score-said")).to_contain_text("3 of 3 files")


def test_what_is_said_of_a_refused_choice_stays_when_the_explore_view_gets_its_answer(page, files):
    held = Held("**/classify*")
    held.hold(page)
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#score-model")).to_contain_text("matrix-capsnet-toys")
    page.click("#tab-score")
    page.set_input_files("#score-files", files[:3])
    said = "matrix-capsnet-toys takes pairs; got 3 files."
    expect(page.locator("#score-said")).to_have_text(said)
    held.release()
    page.click("#tab-explore")
    expect(page.locator("#best")).to_have_text("truck")
    page.click("#tab-score")
    expect(page.locator("#score-said")).to_have_text(said)


@pytest.mark.long
def test_files_that_are_given_before_a_model_is_there_are_scored_once_it_is(open_page, address, files):
    held = Held("**/models/*")
    page = open_page(f"{address}/", prepare=held.hold, wait_for="#pad")
    page.click("#tab-score")
    page.set_input_files("#score-files", files[:3])
    expect(page.locator("#score-said")).to_have_text("Waiting for a model: 3 files")
    held.release()
    expect(page.locator("#score-said")).to_contain_text("3 of 3 files")


def test_answers_of_several_objects_are_not_judged_by_the_names_of_files(page, files, address):
    choose_model(page, "capsnet-multimnist")
    expect(page.locator("#score-model")).to_contain_text("capsnet-multimnist")
    page.click("#tab-score")
    given = [{"name": "3_8.png", "mimeType": "image/png", "buffer": files[3].read_bytes()}]
    page.set_input_files("#score-files", given)
    expect(page.locator("#score-said")).to_contain_text("1 of 1 files")
    assert "right" not in page.inner_text("#score-said")
    expect(page.locator("#confusion-part")).to_be_hidden()
    expect(page.locator("#scores-body tr.wrong")).to_have_count(0)
    query = {"model": "capsnet-multimnist", "top_k": 2}
    [found] = httpx.post(f"{address}/classify", params=query, content=files[3].read_bytes()).json()["results"]
    shown = page.inner_text("#scores-body .number").split()[0]
    assert float(shown) == pytest.approx(found["classes"][1]["probability"], abs=6e-4), "of the weaker digit"


def test_a_blank_image_is_none_of_the_classes_and_has_a_column_of_the_confusion_matrix(page):
    blank = {"name": "7_a.png", "mimeType": "image/png", "buffer": to_png(np.zeros((28, 28), np.uint8))}
    page.click("#tab-score")
    page.set_input_files("#score-files", [blank])
    expect(page.locator("#score-said")).to_contain_text("1 of 1 files")
    assert page.locator("#scores-body td").all_inner_texts()[2].startswith("—")
    assert "0 of 1 right" in page.inner_text("#score-said")
    assert page.locator("#confusion thead th").all_inner_texts() == ["is \\ named", "7", "—"]
    assert page.locator("#confusion tbody td").all_inner_texts() == ["", "1"]
    with page.expect_download() as download:
        page.click("#score-csv")
    [row] = rows_of(download.value)
    assert (row["label"], row["blank"]) == ("", "true")


def test_hidden_files_of_a_chosen_folder_are_left_out(page, files, tmp_path):
    (tmp_path / "some" / ".git").mkdir(parents=True)
    for name in ("a.png", ".DS_Store", ".git/b.png"):
        shutil.copy(files[0], tmp_path / "some" / name)
    page.click("#tab-score")
    page.set_input_files("#score-folder", tmp_path / "some")
    expect(page.locator("#score-said")).to_contain_text("1 of 1 files")


def test_a_run_begins_with_the_doubtful_answers_and_the_title_says_by_what_they_are_sorted(page, files):
    page.click("#tab-score")
    title = page.locator("#results-title")
    page.set_input_files("#score-files", files[:3])
    expect(title).to_have_text("Answers, the doubtful ones first")
    page.click('[data-sort="name"]')
    expect(title).to_have_text("Answers, by file")
    page.set_input_files("#score-files", files[3:6])
    expect(title).to_have_text("Answers, the doubtful ones first")


def test_the_name_of_a_csv_file_is_that_of_the_model_that_scored(page, files):
    page.click("#tab-score")
    page.set_input_files("#score-files", files[:3])
    expect(page.locator("#score-said")).to_contain_text("3 of 3 files")
    page.click("#tab-explore")
    choose_model(page, "capsnet-multimnist")
    expect(page.locator("#score-model")).to_contain_text("capsnet-multimnist")
    page.click("#tab-score")
    with page.expect_download() as download:
        page.click("#score-csv")
    assert download.value.suggested_filename == "capsnet-digits-1-scores.csv"


@pytest.mark.long
def test_an_answer_that_is_not_the_services_ends_the_scoring_and_is_told_once(page, files):
    asked = []

    def foreign(route: Route) -> None:
        asked.append(route)
        route.fulfill(status=200, content_type="text/html", body="<html>Please log in</html>")

    page.route("**/classify*", foreign)
    page.click("#tab-score")
    page.set_input_files("#score-files", files)
    expect(page.locator("#score-said")).to_contain_text("The answer is not the service's")
    assert len(asked) <= 2, "no file is to blame"
    expect(page.locator("#scores-body tr")).to_have_count(0)


@pytest.mark.long
def test_the_picture_of_a_scored_file_is_read_once(page, files):
    page.evaluate("""() => {
        const read = window.createImageBitmap;
        window.reads = 0;
        window.createImageBitmap = (...given) => { window.reads += 1; return read(...given); };
    }""")
    page.click("#tab-score")
    page.set_input_files("#score-files", files)
    expect(page.locator("#score-said")).to_contain_text("51 of 51 files")
    for _ in range(2):
        page.click('[data-sort="name"]')
    page.wait_for_function("() => window.reads >= 51")
    page.wait_for_timeout(200)
    assert page.evaluate("window.reads") == 51


DROP = """([base64, waits]) => {
    const content = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const denied = new DOMException("It is locked", "NotReadableError");
    const file = (name, read) => ({ isFile: true, fullPath: `/scans/${name}`, file: read });
    const readable = file("7_a.png", (resolve) => resolve(new File([content], "7_a.png")));
    const locked = file("8_b.png", (_, reject) => reject(denied));
    const refuse = { readEntries: (_, reject) => reject(denied) };
    const folder = { fullPath: "/scans/more", createReader: () => refuse };
    const parts = [[readable, locked, folder], []];
    const readEntries = (resolve) => {
        window.goOn = () => { waits = false; resolve(parts.shift()); };
        if (!waits) window.goOn();
    };
    const scans = { fullPath: "/scans", createReader: () => ({ readEntries }) };
    const dataTransfer = { types: ["Files"], files: [], items: [{ webkitGetAsEntry: () => scans }] };
    dispatchEvent(Object.assign(new Event("drop"), { dataTransfer }));
}"""


def drop(page: Page, file: Path, *, waits: bool = False) -> None:
    """Drop a folder with this file, one that is locked, and a locked folder; it may wait for `goOn`."""
    page.evaluate(DROP, [base64.b64encode(file.read_bytes()).decode(), waits])


def test_what_cannot_be_read_of_a_dropped_folder_costs_no_other_file_its_answer(page, files):
    page.click("#tab-score")
    drop(page, files[7])
    expect(page.locator("#score-said")).to_contain_text("3 of 3 files")
    expect(page.locator("#score-said")).to_contain_text("2 not readable")
    expect(page.locator("#scores-body")).to_contain_text("cannot be read: It is locked")


def test_where_files_can_be_dropped_is_marked_while_they_are_dragged(page):
    page.click("#tab-score")
    outline = "document.querySelector('.drop').computedStyleMap().get('outline-style').value"
    assert page.evaluate(outline) == "none"
    over = "dispatchEvent(Object.assign(new Event('dragover'), { dataTransfer: { types: ['Files'] } }))"
    page.evaluate(over)
    assert page.evaluate(outline) == "dashed"
    page.evaluate("dispatchEvent(Object.assign(new Event('dragleave'), { relatedTarget: null }))")
    assert page.evaluate(outline) == "none"


def test_pairs_are_not_scored_without_a_file_that_cannot_be_read(page, files):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#score-model")).to_contain_text("matrix-capsnet-toys")
    page.click("#tab-score")
    drop(page, files[7])
    expect(page.locator("#score-said")).to_contain_text("scans/8_b.png cannot be read: It is locked")
    expect(page.locator("#score-results")).to_be_hidden()


def test_a_folder_that_is_read_slowly_takes_the_place_of_no_newer_choice(page, files):
    page.click("#tab-score")
    drop(page, files[7], waits=True)
    expect(page.locator("#notice")).to_have_text("Reading the folder …")
    page.set_input_files("#score-files", files[:2])
    expect(page.locator("#score-said")).to_contain_text("2 of 2 files")
    expect(page.locator("#notice")).to_be_hidden()
    page.evaluate("() => window.goOn()")
    page.wait_for_timeout(500)
    expect(page.locator("#score-progress")).to_have_attribute("max", "2")


def test_scoring_many_files_is_not_said_to_be_slow(page, files):
    held = Held("**/classify*")
    held.hold(page)
    page.click("#tab-score")
    with page.expect_request("**/classify*"):
        page.set_input_files("#score-files", files)
    page.wait_for_timeout(2000)  # more than until the page says that it waits
    expect(page.locator("#notice")).to_be_hidden()
    held.release()


def test_the_files_of_a_model_with_two_views_are_counted_in_pairs(page, files):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#score-model")).to_contain_text("matrix-capsnet-toys")
    page.click("#tab-score")
    page.set_input_files("#score-files", files[:4])
    expect(page.locator("#score-said")).to_contain_text("2 of 2 pairs")


def test_a_choice_that_is_refused_is_told_beside_the_run_that_goes_on(page, files, tmp_path):
    choose_model(page, "matrix-capsnet-toys")
    expect(page.locator("#best")).to_have_text("truck")
    held = Held("**/classify*")
    held.hold(page)
    page.click("#tab-score")
    page.set_input_files("#score-files", files[:2])
    expect(page.locator("#score-said")).to_contain_text("0 of 1 pairs")
    page.set_input_files("#score-files", files[:3])
    expect(page.locator("#notice:visible")).to_have_text("matrix-capsnet-toys takes pairs; got 3 files.")
    expect(page.locator("#score-said")).to_contain_text("0 of 1 pairs")
    (tmp_path / ".hidden").mkdir()
    shutil.copy(files[0], tmp_path / ".hidden" / "a.png")
    page.set_input_files("#score-folder", tmp_path / ".hidden")
    expect(page.locator("#notice:visible")).to_have_text("No files to score.")
    held.release()
