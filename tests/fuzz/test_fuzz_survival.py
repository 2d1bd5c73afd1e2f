"""After all of the fuzzing, which the files before this one do, the service is what it was."""

import sys
from pathlib import Path

import pytest

from service.app import create_app
from service.settings import Settings
from tests.fuzz.fuzzed_service import FuzzedService, resident_bytes
from tests.fuzz.sizes import is_fuzz

WARM_ROUNDS, ROUNDS = (3, 10) if is_fuzz() else (2, 3)
MIX_BYTES = 50e6  # all sorts of requests hold different amounts for a while
GROWTH_BYTES = 4e6  # hundreds of requests bring more
LEAST_SENT = 20_000 if is_fuzz() else 600
MOST_OVERLOADED = 0.01  # of all requests; nothing of the service's is tested by what it has no time for
MOST_CLOSED = 0.25  # of the conversations, which begin with bytes that may be no request at all

linux = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")


@pytest.fixture
def _all_was_sent(request: pytest.FixtureRequest) -> None:
    """The tests of all files of this folder were run before."""
    chosen = {item.path for item in request.session.items}
    if not chosen.issuperset(Path(__file__).parent.glob("test_*.py")):
        pytest.skip("not all files of this folder are run")


@pytest.mark.usefixtures("_all_was_sent")
def test_every_documented_path_has_answered_as_it_was_asked(service: FuzzedService) -> None:
    metrics = service.process.client.get(f"{service.process.metrics_url}/metrics").text
    paths = create_app(Settings(api_keys=None)).openapi()["paths"]
    assert [path for path in paths if f'{{route="{path}",status="200"}}' not in metrics] == []


@pytest.mark.usefixtures("_all_was_sent")
def test_as_much_was_sent_as_is_said_and_nearly_all_of_it_was_answered(service: FuzzedService) -> None:
    assert service.sent >= LEAST_SENT
    assert service.statuses[503] <= MOST_OVERLOADED * service.sent
    assert service.statuses[0] <= MOST_CLOSED * service.conversations


def test_nothing_that_was_sent_left_an_error_in_the_log(service: FuzzedService) -> None:
    assert [line for line in service.process.lines if line["level"] in {"error", "critical"}] == []


def test_the_service_is_ready_and_classifies_as_before(service: FuzzedService) -> None:
    assert service.process.client.get("/readyz").status_code == 200
    assert service.classify_known() == service.first_answer


@linux
@pytest.mark.usefixtures("_all_was_sent")
def test_memory_is_after_all_that_was_sent_what_it_was_after_a_tenth(service: FuzzedService) -> None:
    memory = service.resident_bytes
    assert memory[-1] - memory[len(memory) // 10] < MIX_BYTES


@linux
@pytest.mark.usefixtures("_all_was_sent")
def test_what_was_sent_and_is_sent_again_and_again_takes_no_more_memory(service: FuzzedService) -> None:
    for _ in range(WARM_ROUNDS):
        service.send_kept()
    before = resident_bytes(service.process.running.pid)
    for _ in range(ROUNDS):
        service.send_kept()
    assert resident_bytes(service.process.running.pid) - before < GROWTH_BYTES
