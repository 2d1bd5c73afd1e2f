"""The tables that are written into the pages from the code."""

import re
from pathlib import Path

import pytest

from docs.generate import PAGES, TABLE, outdated_pages, tables

PAGE = "# Page\n\nBefore.\n\n<!-- table: some -->\n{}<!-- end of table -->\n\nAfter.\n"
TABLE_OF_TODAY = "| a | b |\n| --- | --- |\n| \\1 | 2 |\n"


def written(folder: Path, inside: str) -> Path:
    page = folder / "deeper" / "page.md"
    page.parent.mkdir()
    page.write_text(PAGE.format(inside))
    return page


@pytest.mark.parametrize("inside", ["", "\n| a | b |\n| --- | --- |\n| older | 2 |\n\n"])
def test_an_older_table_is_replaced_and_nothing_else(tmp_path, inside):
    page = written(tmp_path, inside)
    ((found, text),) = outdated_pages({"some": TABLE_OF_TODAY}, tmp_path).items()
    assert (found, text) == (page, PAGE.format(f"\n{TABLE_OF_TODAY}\n"))
    page.write_text(text)
    assert outdated_pages({"some": TABLE_OF_TODAY}, tmp_path) == {}


def test_a_table_that_is_not_made_is_noticed(tmp_path):
    written(tmp_path, "")
    with pytest.raises(KeyError, match="some"):
        outdated_pages({"other": TABLE_OF_TODAY}, tmp_path)


def test_the_environment_does_not_change_the_tables(monkeypatch):
    made = tables()
    monkeypatch.setenv("CAPSNET_METRICS_PORT", "9101")
    monkeypatch.setenv("CAPSNET_API_KEYS", "a-key")
    assert tables() == made


def test_the_pages_have_every_table_once_and_as_the_code_says():
    made = tables()
    shown = [found[1] for page in PAGES.rglob("*.md") for found in TABLE.finditer(page.read_text())]
    assert sorted(shown) == sorted(made)
    for page in PAGES.rglob("*.md"):
        marks = re.findall(r"^<!-- (table: \w+|end of table) -->$", page.read_text(), re.MULTILINE)
        assert len(marks) == 2 * len(TABLE.findall(page.read_text())), page
    assert not outdated_pages(made), "python -m docs.generate writes them"
