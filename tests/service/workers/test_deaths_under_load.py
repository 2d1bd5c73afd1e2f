"""A process is killed while requests are under way: each is answered, or its connection closes."""

import http.client
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.faulty_bundle import write_slow_bundle
from tests.support.live_process import LiveProcess, live_process
from tests.support.live_service import wait_until
from tests.support.live_workers import pids
from tests.support.small_pictures import to_npy
from tests.support.tiny_bundle import SIDE

IMAGES = 16  # of a request, and of a batch, which takes 0.3 s or more
OF_EACH = 12  # connections of each worker, each with a request under way
WAITING = 5 * IMAGES  # so many images wait at least when a process is killed
PATIENCE_S = 30
NPY = {"Content-Type": "application/x-npy"}
BODY = to_npy(np.full((IMAGES, SIDE, SIDE, 1), 0.5, np.float32))


@dataclass(frozen=True)
class Client:
    """A connection, and the worker at its other end."""

    connection: http.client.HTTPConnection
    worker: str

    def classify(self) -> int | None:
        """The status of the answer; None where the connection is closed without one.

        Raises:
            TimeoutError: neither comes.
        """
        try:
            self.connection.request("POST", "/classify", BODY, NPY)
            answer = self.connection.getresponse()
            answer.read()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            return None
        assert answer.status == 200 or answer.headers["Retry-After"]
        return answer.status


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LiveProcess]:
    write_slow_bundle(tmp_path / "models" / "slow" / "1")
    facts = {"workers": 2, "threads": 1, "max_batch": IMAGES}
    with live_process(tmp_path / "models", tmp_path / "log", **facts) as service:
        wait_until(
            lambda: len(pids(service, "worker")) == 2 and len(pids(service, "the engine process")) == 1
        )
        yield service


def connect(service: LiveProcess) -> Client:
    connection = http.client.HTTPConnection(*service.address, timeout=PATIENCE_S)
    connection.request("GET", "/healthz")
    answer = connection.getresponse()
    answer.read()
    return Client(connection, answer.headers["x-request-id"][:16])


@contextmanager
def clients_of_both_workers(service: LiveProcess) -> Iterator[list[Client]]:
    """OF_EACH of each; the system decides which worker gets a connection."""
    by_worker: dict[str, list[Client]] = {}
    with ExitStack() as opened:

        def are_enough() -> bool:
            client = connect(service)
            opened.enter_context(closing(client.connection))
            by_worker.setdefault(client.worker, []).append(client)
            return len(by_worker) == 2 and all(len(clients) >= OF_EACH for clients in by_worker.values())

        wait_until(are_enough)
        yield [client for clients in by_worker.values() for client in clients[:OF_EACH]]


def outcomes_of_death(
    service: LiveProcess, clients: list[Client], kill: Callable[[], None]
) -> list[int | None]:
    """What becomes of a request of each client if a process dies while most of them wait."""
    with ThreadPoolExecutor(len(clients)) as pool:
        asking = [pool.submit(client.classify) for client in clients]
        wait_until(lambda: service.metric("capsnet_queue_images") >= WAITING)
        kill()
        return [one.result() for one in asking]


def test_requests_of_a_killed_worker_end_and_those_of_the_other_one_are_answered(service):
    killed = pids(service, "worker").pop()
    with clients_of_both_workers(service) as clients:
        outcomes = outcomes_of_death(service, clients, lambda: os.kill(killed, signal.SIGKILL))
    of_worker: dict[str, list[int | None]] = {}
    for client, outcome in zip(clients, outcomes, strict=True):
        of_worker.setdefault(client.worker, []).append(outcome)
    lost, others = sorted(of_worker.values(), key=lambda outcomes: None not in outcomes)
    assert None in lost
    assert set(lost) <= {None, 200}
    assert others == [200] * OF_EACH
    wait_until(lambda: len(pids(service, "worker") - {killed}) == 2)
    with clients_of_both_workers(service) as clients:
        assert [client.classify() for client in clients] == [200] * len(clients)


def test_requests_get_503_if_the_engine_process_is_killed_and_their_connections_serve_on(service):
    [killed] = pids(service, "the engine process")
    with clients_of_both_workers(service) as clients:
        outcomes = outcomes_of_death(service, clients, lambda: os.kill(killed, signal.SIGKILL))
        assert set(outcomes) <= {200, 503}
        assert outcomes.count(503) >= WAITING / IMAGES
        wait_until(lambda: clients[0].classify() == 200)
        assert [client.classify() for client in clients] == [200] * len(clients)
