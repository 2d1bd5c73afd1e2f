"""A service process with keys, whose standard error is read."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.support.json_lines import written_lines
from tests.support.live_service import wait_until

KEYS = ("a-first-key", "a-second-key")
ADMIN_KEY = "the-admin-key"
PAGE = "https://page.example"


@dataclass
class Process:
    """A running service: clients with and without a key, and what it has logged."""

    client: httpx.Client
    stranger: httpx.Client
    log: Path

    @property
    def lines(self) -> list[dict[str, Any]]:
        return written_lines(self.log)

    def line_of(self, request_id: str) -> dict[str, Any]:
        """The log line of a request, once it is written."""
        wait_until(lambda: any(line.get("id") == request_id for line in self.lines))
        (line,) = [line for line in self.lines if line.get("id") == request_id]
        return line

    def asked(self, method: str, path: str, **options: Any) -> tuple[httpx.Response, dict[str, Any]]:
        """An answer and its log line."""
        headers = {"X-Request-ID": uuid4().hex, **options.pop("headers", {})}
        answer = self.client.request(method, path, headers=headers, **options)
        return answer, self.line_of(headers["X-Request-ID"])


@contextmanager
def logged_process(models: Path, log: Path) -> Iterator[Process]:
    """A service with keys, a key for administration and an origin, whose log is written to this file."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CAPSNET_")} | {
        "CAPSNET_API_KEYS": ", ".join(KEYS),
        "CAPSNET_ADMIN_KEY": ADMIN_KEY,
        "CAPSNET_CORS_ORIGINS": PAGE,
    }
    command = [sys.executable, "-m", "service.cli", "--models", str(models), "--port", "0", "--device", "cpu"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        ) as running,
    ):
        try:
            line = running.stdout.readline()
            address = next(word for word in line.split() if word.startswith("http://"))
            keyed = httpx.Client(base_url=address, headers={"X-API-Key": KEYS[0]}, timeout=60)
            with keyed, httpx.Client(base_url=address, timeout=60) as stranger:
                yield Process(keyed, stranger, log)
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)
