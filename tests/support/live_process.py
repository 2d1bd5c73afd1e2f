"""capsnet-serve in a process of its own, for what a thread of the test cannot show: signals and the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.json_lines import written_lines
from tests.support.live_service import metric

START_S = 240.0
CAPSNET_SERVE = ("-m", "service.cli")
KILLABLE = (str(Path(__file__).with_name("killable_serve.py")),)
LINGERING = (str(Path(__file__).with_name("lingering_serve.py")),)
COLLECTING = (str(Path(__file__).with_name("collecting_serve.py")),)


@dataclass
class LiveProcess:
    """A running service, a client of it, and what it has written to standard error."""

    running: subprocess.Popen[str]
    client: httpx.Client
    log: Path
    grpc_address: str = ""
    metrics_url: str = ""  # of the port for /metrics, if it has one of its own

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self.client.base_url.host, self.client.base_url.port or 80

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its log, in which every line is one JSON object."""
        return written_lines(self.log)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        return metric(self.client, name, **labels)

    def kill_inference_thread(self) -> None:
        """End one of its inference threads; only of a process that was started as KILLABLE."""
        self.running.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """Ask it to end, and wait for nothing."""
        self.running.send_signal(signal.SIGTERM)


@contextmanager
def live_process(
    models: Path,
    log: Path,
    *,
    program: tuple[str, ...] = CAPSNET_SERVE,
    starting: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    **settings: object,
) -> Iterator[LiveProcess]:
    """A service process that is ready, on a free port, with these settings and no others.

    Args:
        models: the folder of models.
        log: the file for its standard error.
        program: that is run.
        starting: called while it starts.
        settings: in small letters, without the prefix.
    """
    facts = {"models": models, "port": 0, "device": "cpu", **settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CAPSNET_")}
    environment |= {f"CAPSNET_{name.upper()}": str(value) for name, value in facts.items()}
    command = [sys.executable, *program]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        ) as running,
    ):
        try:
            assert running.stdout is not None
            starting(running)
            line = running.stdout.readline()  # comes once its models are loaded
            address = next((word for word in line.split() if word.startswith("http://")), None)
            assert address, f"capsnet-serve did not start: {log.read_text()}"
            with httpx.Client(base_url=address, timeout=START_S) as client:
                metrics_url = line.partition("metrics at ")[2].partition("/metrics")[0]
                yield LiveProcess(running, client, log, line.rpartition("gRPC at ")[2].strip(), metrics_url)
        finally:
            running.kill()
