"""The service that all of the fuzzing is aimed at, and the account of it at the end of the run."""

import logging
from collections.abc import Iterator
from pathlib import Path

import hypothesis.core
import pytest
from hypothesis import settings

from tests.fuzz.fuzzed_service import SAMPLE_EVERY, FuzzedService, fuzzed_service
from tests.fuzz.sizes import FUZZ, is_fuzz

settings.register_profile("fuzz", FUZZ)

THE_SERVICE = pytest.StashKey[FuzzedService]()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[FuzzedService]:
    """A process that is never started again: whatever a request does to it, later ones meet it."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # pytest keeps a line for each request
    with fuzzed_service(tmp_path_factory.mktemp("fuzz")) as service:
        pytestconfig.stash[THE_SERVICE] = service
        yield service


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of the fuzzing comes first: of several processes that run all tests, one has it whole.

    With `--dist worksteal` each begins with a part of the tests in their order, and one that has nothing left
    takes tests from the end of another's.
    """
    folder = Path(__file__).parent
    items.sort(key=lambda item: folder not in item.path.parents)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How much was sent in `make fuzz`, what came back, and how to send the same again."""
    if not is_fuzz() or (service := config.stash.get(THE_SERVICE, None)) is None:
        return
    by_status = ", ".join(f"{count} x {status}" for status, count in sorted(service.statuses.items()))
    terminalreporter.section("fuzzing")
    terminalreporter.write_line(f"{service.sent} requests: {by_status}")
    if memory := service.resident_bytes:
        tenth = len(memory) // 10
        terminalreporter.write_line(
            f"resident memory: {memory[tenth] / 1e6:.0f} MB after {(tenth + 1) * SAMPLE_EVERY} requests, "
            f"{memory[-1] / 1e6:.0f} MB after {len(memory) * SAMPLE_EVERY}"
        )
    terminalreporter.write_line(f"the same again: make fuzz SEED={hypothesis.core.global_force_seed}")
