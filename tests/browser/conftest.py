"""The site, built once and served as plain files, without anything that answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser.build import build
from browser.runtime import NpmError
from tests.conftest import made_once
from tests.service.playground.conftest import address as service  # noqa: F401 - a fixture
from tests.service.playground.conftest import browser, open_page  # noqa: F401 - fixtures
from tests.support.paths import MODELS

# Of a host that lets pages have threads, and that allows scripts no more than they need.
STRICT = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; worker-src 'self'; "
        "connect-src 'self'; img-src 'self' blob: data:"
    ),
}


class _Files(SimpleHTTPRequestHandler):
    """Files, with headers that a test chooses."""

    def __init__(self, *args: object, headers_too: dict[str, str], **options: object) -> None:
        self._headers_too = headers_too
        super().__init__(*args, **options)

    def end_headers(self) -> None:
        for name, value in self._headers_too.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_files(folder: Path, headers: dict[str, str] | None = None) -> Iterator[str]:
    """The address of a server of the files in a folder."""
    handler = partial(_Files, directory=str(folder), headers_too=headers or {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The playground with the shipped models, as `make site` builds it."""
    try:
        return made_once(tmp_path_factory, "playground", partial(build, MODELS))
    except NpmError as error:
        pytest.skip(f"the playground needs npm: {str(error).splitlines()[0]}")


@pytest.fixture(scope="session")
def site(site_folder: Path) -> Iterator[str]:
    """The address of the site."""
    with serve_files(site_folder) as address:
        yield address
