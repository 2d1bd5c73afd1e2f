"""Build the site in build/site, with `python -m docs.build`, and check every page of it.

The tables of the pages must be those that generate.py makes from the code. Zensical then fails on a link to a
page or a heading that does not exist. What it does not check is checked here: pictures, links inside what
pages take in, and that no page asks the internet for anything.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs import generate

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
PLAYGROUND = SITE / "playground"  # which `make site` adds
NO_PLAYGROUND = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>No playground</title>
<p>This build of the documentation has no playground: <code>make docs</code> leaves it out,
<code>make site</code> adds it. <a href="../index.html">Back</a></p>
"""
LOADED = {"img", "script", "link", "iframe", "source"}  # what a browser fetches without being asked


@dataclass
class Page(HTMLParser):
    """The addresses in a page, and the names in it that can be linked to.

    Attributes:
        addresses: tag and address of everything that is linked or loaded.
        anchors: the ids of its elements.
    """

    addresses: list[tuple[str, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin to parse."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what an element refers to, and its id."""
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.addresses.append((tag, value))
            if name == "id" and value:
                self.anchors.add(value)


def main() -> None:
    """Build, check, and end with status 1 if something is wrong."""
    if outdated := generate.outdated_pages(generate.tables()):
        names = ", ".join(str(page.relative_to(ROOT)) for page in outdated)
        sys.exit(f"tables that the code has outgrown in {names}: python -m docs.generate writes them")
    generate.write_taken_in()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if status := subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(status)
    PLAYGROUND.mkdir()
    (PLAYGROUND / "index.html").write_text(NO_PLAYGROUND)
    if found := sorted(faults(SITE)):
        sys.exit("\n".join(found))


def faults(site: Path) -> Iterator[str]:
    """A line for each address in the pages of a site that leads nowhere or to the internet."""
    pages = {file: read(file) for file in site.rglob("*.html")}
    for file, page in pages.items():
        for tag, address in page.addresses:
            if reason := fault(site, pages, file, tag, address):
                yield f"{file.relative_to(site)}: {address}: {reason}"


def read(file: Path) -> Page:
    """A page, parsed."""
    page = Page()
    page.feed(file.read_text())
    return page


def fault(site: Path, pages: dict[Path, Page], file: Path, tag: str, address: str) -> str:
    """What is wrong with an address, "" if nothing is."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return "a page needs nothing from the internet" if tag in LOADED and parts.scheme != "data" else ""
    folder = site if parts.path.startswith("/") else file.parent
    target = (folder / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
    if not target.is_relative_to(site.resolve()) or not target.exists():
        return "there is no such file"
    linked = pages.get(target)
    if parts.fragment and linked and unquote(parts.fragment) not in linked.anchors:
        return "there is no such heading"
    return ""


if __name__ == "__main__":
    main()
