"""Text of users within the Markdown of a model card."""

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from export.markdown import cell, code, plain

TEXTS = [
    "7",
    "we|ird",
    "a `b` c",
    "``",
    "`edge",
    "*bold* <b>x",
    "_a_ ~b~",
    "[x](y)",
    "# Heading",
    "C:\\new",
    "&copy;",
]


def inline(markdown: str) -> list[Token]:
    """The paragraphs and cells of Markdown as GitHub reads it."""
    return [token for token in MarkdownIt("gfm-like", {"linkify": False}).parse(markdown) if token.children]


def shown(markdown: str) -> list[str]:
    """What a reader sees of one paragraph: its text, and all else with its kind."""
    [paragraph] = inline(markdown)
    texts = {"text", "text_special"}
    return [
        token.content if token.type in texts else f"<{token.type}>{token.content}"
        for token in paragraph.children
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_a_code_span_shows_the_text_as_it_is(text):
    assert shown(code(text)) == [f"<code_inline>{text}"]


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_means_nothing_to_markdown(text):
    assert "".join(shown(f"Classes: {plain(text)}.")) == f"Classes: {text}."


@pytest.mark.parametrize("text", TEXTS)
def test_a_bar_ends_no_cell(text):
    [command, content] = inline(f"| | |\n| --- | --- |\n| command | {cell(code(text))} |\n")
    assert command.content == "command"
    assert [one.content for one in content.children] == [text]


def test_names_and_numbers_stay_as_they_are():
    assert code("capsnet-train fit") == "`capsnet-train fit`"
    assert (plain("airplane"), cell(0.5)) == ("airplane", "0.5")


def test_a_line_break_ends_no_cell():
    assert cell("fit\n  --out x") == "fit   --out x"
