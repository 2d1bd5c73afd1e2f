"""The view that classifies many files."""

import csv
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from service.score.table import FORMULA_STARTS
from tests.support.small_pictures import to_png
from training.data.synthetic.drawn_digits import draw_digits


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


@pytest.fixture
def page(open_page, address):
    """The page, whose console tells of the answer to the file that is no picture."""
    page = open_page(f"{address}/", may_complain=True)
    page.wait_for_selector(".sample")
    return page


def test_fifty_files_are_scored_judged_and_saved_though_one_is_no_picture(page, files):
    page.click("#tab-score")
    page.set_input_files("#score-files", files)
    expect(page.locator("#score-said")).to_contain_text("51 of 51 files")
    said = page.inner_text("#score-said")
    assert "of 50 right" in said
    assert "1 not readable" in said
    right = int(said.split("·")[1].split()[0])
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
    with Path(download.value.path()).open(newline="") as file:
        rows = list(csv.DictReader(file))
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
    with Path(download.value.path()).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["file"] for row in rows} == {f"'{name}" for name in names} | {"0_a.png"}
    assert all(0 <= float(row["probability"]) <= 1 for row in rows)


LABELS = {
    "7/a.png": "7", "test/7/12.png": "7", "7_a.png": "7", "a-7.png": "7", "a-7-3.png": None, "77.png": None,
    "scan.png": None, "3/7.png": "3",
}  # fmt: skip


def test_a_label_is_read_from_a_folder_or_a_name(page):
    script = "async (given) => (await import('/playground/scripts/labels.js')).labelOf(...given)"
    classes = [str(digit) for digit in range(10)]
    assert {path: page.evaluate(script, [path, classes]) for path in LABELS} == LABELS
