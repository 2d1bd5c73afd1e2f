"""The check of the built site: links that lead nowhere, and what a page would fetch from the internet."""

from pathlib import Path

import pytest

from docs.build import faults
from tests.support.paths import ROOT


@pytest.fixture
def site(tmp_path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other.html").write_text(
        '<h2 id="there">There</h2><a href="../index.html">back</a>'
    )
    (tmp_path / "picture.png").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    "element",
    [
        '<a href="folder/other.html">page</a>',
        '<a href="folder/other.html#there">heading</a>',
        '<a href="#here">heading of its own</a>',
        '<img src="picture.png"/>',
        '<img src="data:image/png;base64,AAAA"/>',
        '<a href="https://example.com/nobody-asks">elsewhere</a>',
        '<a href="mailto:somebody@example.com">mail</a>',
    ],
)
def test_what_leads_somewhere_is_no_fault(site, element):
    (site / "index.html").write_text(f'<h1 id="here">Here</h1>{element}')
    assert [*faults(site)] == []


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ('<a href="folder/none.html">page</a>', "there is no such file"),
        ('<a href="../outside.html">page</a>', "there is no such file"),
        ('<a href="folder/other.html#nowhere">heading</a>', "there is no such heading"),
        ('<a href="#nowhere">heading</a>', "there is no such heading"),
        ('<img src="none.png"/>', "there is no such file"),
        ('<script src="https://example.com/script.js"></script>', "a page needs nothing from the internet"),
        ('<link href="//fonts.example.com/font.css"/>', "a page needs nothing from the internet"),
    ],
)
def test_what_leads_nowhere_or_to_the_internet_is_told_with_its_page(site, element, reason):
    (site / "index.html").write_text(element)
    [told] = faults(site)
    assert told.startswith("index.html: ")
    assert told.endswith(f": {reason}")


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT / 'docs')}\n" in listed, page
