"""Chromium of the system on the page of a live service; without one these tests are skipped."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.live_service import live_service, settings_for
from tests.support.paths import MODELS

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 60_000  # on a machine that may be busy


@dataclass
class Watched:
    """What a page must not do.

    Attributes:
        complaints: errors in the console, and exceptions that nothing caught.
        hosts: that were asked for anything.
    """

    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def watch(self, page: Page) -> None:
        """Begin to listen."""
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self.hosts.add(asked.url.split("/")[2]))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For the tests of one file: while it is open, an event loop runs in this thread, and no other can."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("Chromium is not installed")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Of a service with the shipped models; their plain graphs, which need no preparation."""
    with live_service(settings_for(MODELS, optimize=False)) as client:
        yield str(client.base_url).rstrip("/")


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a context of its own; afterwards nothing must have gone wrong there."""
    contexts: list[BrowserContext] = []
    watched: list[tuple[Watched, str, bool]] = []

    def open_one(
        address: str,
        *,
        may_complain: bool = False,
        wait_for: str = ".model",
        prepare: Callable[[Page], object] = lambda page: None,
        **options: object,
    ) -> Page:
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(PATIENCE_MS)
        page, one = contexts[-1].new_page(), Watched()
        one.watch(page)
        watched.append((one, address.split("/")[2], may_complain))
        prepare(page)
        page.goto(address)
        page.wait_for_selector(wait_for)
        return page

    yield open_one
    for context in contexts:
        context.close()
    for one, host, may_complain in watched:
        assert one.hosts == {host}, "only the service is asked"
        assert may_complain or not one.complaints


@pytest.fixture
def page(open_page: Callable[..., Page], address: str, request: pytest.FixtureRequest) -> Page:
    """The page, with capsnet-digits chosen; in a module with MAY_COMPLAIN its console may tell of errors."""
    page = open_page(f"{address}/", may_complain=getattr(request.module, "MAY_COMPLAIN", False))
    page.wait_for_selector(".sample")
    return page
