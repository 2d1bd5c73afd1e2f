"""Text of users within the Markdown of a model card."""

import re

BACKTICKS = re.compile("`+")
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def code(text: str) -> str:
    """A code span that shows the text as it is, backticks too."""
    fence = "`" * (max(map(len, BACKTICKS.findall(text)), default=0) + 1)
    pad = " " if len(fence) > 1 else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def plain(text: str) -> str:
    """Text in which no character means anything to Markdown."""
    return SPECIAL.sub(r"\\\1", text)


def cell(text: object) -> str:
    """The content of a table's cell, which a bar or a line break would end, in code spans as well."""
    return " ".join(str(text).splitlines()).replace("|", "\\|")
