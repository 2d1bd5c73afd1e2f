"""The README and the pages of the site: what they tell people to run runs, and answers as they say."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.code_blocks import (
    ADMIN_KEY,
    CODE,
    PROSE,
    Block,
    Reader,
    blocks,
    difference,
    has_curl,
    pages,
    parsed_answer,
)
from tests.support.live_process import LiveProcess, live_process
from tests.support.paths import ROOT
from training.data.synthetic.drawn_digits import draw_digits

PAGES = [page for page in pages() if any(block.language in CODE for block in blocks(page))]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """What a reader has beside the repository: the models, and pictures of two classes."""
    folder = tmp_path_factory.mktemp("reader") / "shared"
    (folder / "models").mkdir(parents=True)
    for model in (ROOT / "models").iterdir():
        (folder / "models" / model.name).mkdir()  # in which pages may write
        for version in model.iterdir():
            (folder / "models" / model.name / version.name).symlink_to(version)
    rng = np.random.default_rng(0)
    for name, digit in (("cat", 0), ("dog", 1)):
        (folder / "pictures" / name).mkdir(parents=True)
        for index, drawn in enumerate(draw_digits(np.full(20, digit), rng)):
            Image.fromarray(drawn).save(folder / "pictures" / name / f"{index}.png")
    Image.fromarray(draw_digits(np.array([1]), rng)[0]).save(folder / "new.jpg")
    return folder


@pytest.fixture(scope="module")
def service(shared) -> Iterator[LiveProcess]:
    """One that serves these models."""
    log = shared.parent / "log"
    settings = {"optimize": "false", "cache": shared.parent / "cache", "rescan_s": 0.2, "grpc_port": 0}
    settings["admin_key"] = ADMIN_KEY
    with live_process(shared / "models", log, **settings) as service:
        yield service


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_blocks_of_a_page_run(page, shared, service, tmp_path):
    if not has_curl():
        pytest.skip("curl is not installed")
    reader = Reader(tmp_path / "reader", shared, service.address[1], service.grpc_address)
    following = [block for block in blocks(page) if block.language in CODE]
    for block, after in zip(following, [*following[1:], None], strict=True):
        if block.not_run or block.language == "json":
            continue
        told = parsed_answer(after.text) if after and after.language == "json" and not after.not_run else None
        printed = reader.run(block, refused=told is not None and "status" in told)
        if told is not None:
            assert not (found := difference(told, json.loads(printed))), f"line {after.line}: {found}"


def test_most_blocks_are_run_and_the_others_say_why_not():
    found = [block for page in pages() for block in blocks(page) if block.language in CODE]
    left_out = [block for block in found if block.not_run]
    assert len(left_out) < len(found) / 3
    assert all(len(block.not_run or "") > 10 for block in left_out)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page):
    assert {block.language for block in blocks(page)} <= CODE | PROSE
    assert page.read_text().count("```") == 2 * len(list(blocks(page)))


def test_every_answer_follows_the_request_that_it_answers():
    for page in PAGES:
        found = [block for block in blocks(page) if block.language in CODE]
        for before, block in zip([None, *found], found, strict=False):
            if block.language == "json" and not block.not_run:
                assert before, page
                assert before.language == "sh", (page, block.line)
                assert not before.not_run, (page, block.line)


def test_the_readme_runs_each_kind_of_block():
    assert Counter(block.language for block in blocks(ROOT / "README.md") if not block.not_run) >= Counter(
        {"sh": 3, "json": 1, "python": 1}
    )


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_a_block_that_fails_is_noticed(shared, service, tmp_path):
    reader = Reader(tmp_path / "reader", shared, service.address[1], service.grpc_address)
    for text in (
        "false | cat",
        "curl localhost:8000/nothing",
        "curl -F images=@docs/none.png localhost:8000/classify",
    ):
        with pytest.raises(AssertionError, match="line 7"):
            reader.run(Block("sh", text, 7, None))
    with pytest.raises(AssertionError, match="line 8"):
        reader.run(Block("python", "from capsnet import Nothing", 8, None))


@pytest.mark.parametrize(
    ("told", "came"),
    [
        ('{"a": 1, ...}', '{"a": 1, "b": 2}'),
        ('{"a": [0.5, ...]}', '{"a": [0.5004, 3]}'),
        ('[{"a": [...], "text": "came ..."}, ...]', '[{"a": [1, 2], "text": "came 5 bytes"}, 4]'),
        ('{"image": "<base64 PNG>"}', '{"image": "iVBO"}'),
    ],
)
def test_an_answer_may_leave_out_what_dots_stand_for(told, came):
    assert difference(parsed_answer(told), json.loads(came)) is None


@pytest.mark.parametrize(
    ("told", "came"),
    [
        ('{"a": 1}', '{"a": 1, "b": 2}'),
        ('{"a": 1, "b": 2}', '{"a": 1}'),
        ('{"a": [0.5]}', '{"a": [0.5, 3]}'),
        ('{"a": [0.5, ...]}', '{"a": [0.6, 3]}'),
        ('{"label": "7"}', '{"label": "6"}'),
        ('{"label": "7"}', '{"label": 7}'),
        ('{"confident": true}', '{"confident": null}'),
        ('{"text": "came ..."}', '{"text": "went"}'),
    ],
)
def test_an_answer_that_differs_is_noticed(told, came):
    assert difference(parsed_answer(told), json.loads(came))


def test_a_mark_belongs_to_the_block_after_it(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: needs a GPU -->\n```sh\nfirst\n```\n\n    ```sh\n    second\n    ```\n")
    assert list(blocks(page)) == [
        Block("sh", "first\n", 2, "needs a GPU"),
        Block("sh", "second\n", 6, None),
    ]
