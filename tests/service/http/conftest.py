"""Services that several files of this folder ask."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.live_service import live_service, settings_for
from tests.support.logged_process import Process, logged_process
from tests.support.tiny_bundle import write_bundle


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    return root


@pytest.fixture(scope="module")
def patient(models: Path) -> Iterator[httpx.Client]:
    """A service to which a body may take ten minutes."""
    with live_service(settings_for(models, receive_ms=600_000)) as client:
        yield client


@pytest.fixture(scope="module")
def process(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service process with keys, whose log is read."""
    with logged_process(models, tmp_path_factory.mktemp("log") / "stderr") as process:
        yield process
