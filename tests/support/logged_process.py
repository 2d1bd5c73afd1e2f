"""A service process with keys, whose standard error is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.support.json_lines import written_lines
from tests.support.live_process import live_process
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
    settings = {"api_keys": ", ".join(KEYS), "admin_key": ADMIN_KEY, "cors_origins": PAGE}
    with live_process(models, log, **settings) as service:
        keyed = {"base_url": service.client.base_url, "headers": {"X-API-Key": KEYS[0]}, "timeout": 60}
        with httpx.Client(**keyed) as client:
            yield Process(client, service.client, log)
