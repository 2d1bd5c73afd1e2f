"""The service on a real socket, in a thread of the test."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.http.connections import BoundedHttp
from service.models.repository import Repository
from service.settings import Settings
from service.state import Service

START_S = 240.0  # graphs are derived first, on a machine that may be busy


def settings_for(models: Path, **changes: object) -> Settings:
    """Settings on the CPU, with no second look at the disk unless a test asks for it."""
    return Settings(**{"models": str(models), "device": "cpu", "rescan_s": 0, **changes})


@contextmanager
def live_service(
    settings: Settings,
    *,
    ready: bool = True,
    http: type[BoundedHttp] = BoundedHttp,
    on_loaded: Callable[[Repository], None] | None = None,
    port: int = 0,
    beside: Callable[[Service], AbstractAsyncContextManager[None]] | None = None,
) -> Iterator[httpx.Client]:
    """A client of a running service that has loaded its models; `ready=False` does not wait for that."""
    app = create_app(settings, on_loaded, beside=beside)
    config = uvicorn.Config(app, http=http, ws="none", port=port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="service")
    thread.start()
    try:
        port = _port(server, thread)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_S) as client:
            if ready:
                wait_until(lambda: client.get("/readyz").status_code == 200)
            yield client
    finally:
        server.should_exit = True
        thread.join()


def is_closed(address: tuple[str, int]) -> bool:
    """Whether nobody accepts connections there."""
    with socket.socket() as connection:
        return connection.connect_ex(address) != 0


def free_port() -> int:
    """A port for a service that is started more than once; whoever asks for any port gets another."""
    of_the_system = Path("/proc/sys/net/ipv4/ip_local_port_range")  # of Linux; elsewhere it begins higher
    first = int(of_the_system.read_text().split()[0]) if of_the_system.is_file() else 32_768
    while True:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", random.SystemRandom().randrange(1024, max(first, 2048))))
            except OSError:  # taken
                continue
            return probe.getsockname()[1]


def wait_until(condition: Callable[[], bool], timeout_s: float = START_S) -> None:
    """Ask until the condition holds; fails when it does not within the time."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    """The sum of a service's samples of that name that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def _port(server: uvicorn.Server, thread: threading.Thread) -> int:
    wait_until(lambda: server.started or not thread.is_alive())
    return server.servers[0].sockets[0].getsockname()[1]
