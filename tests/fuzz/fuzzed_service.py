"""The service that is fuzzed, in a process of its own, and what holds for whatever it answers."""

import base64
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from tests.support.live_process import LiveProcess, live_process
from tests.support.small_pictures import random_png
from tests.support.tiny_bundle import write_bundle
from tests.support.tiny_explain import write_explained_bundle

ADMIN_KEY = "admin"
# color has no decoder; only spare is ever unloaded
MODELS = ("tiny", "tiny-decoder", "color", "stereo", "spare")
LIMIT_S = 30  # no request takes a hundredth of it; what takes longer hangs
# Small, so that they are reached.
LIMITS = {
    "max_body_bytes": 2**20,
    "max_pixels": 2**20,
    "max_images_per_request": 8,
    "max_reconstructions": 64,
    "queue_images": 64,
    "deadline_ms": 20_000,
}
PROBLEM_BYTES = 4096  # an answer repeats little of what was wrong
PICTURES = {"image", "mask", "model_input", "overlay", "reconstruction"}
NUMBERS = {"pose", "poses", "probabilities", "heat", "entropy", "logit_change", "largest_logit_change"}
KEPT = 150
SAMPLE_EVERY = 50  # requests


@dataclass
class FuzzedService:
    """A running service, and a count of what it was sent.

    Attributes:
        statuses: answers by status; 0 for connections that were closed without one.
        conversations: how many connections were sent bytes that need not be a request.
        resident_bytes: of the process, after every 50 requests.
        kept: a random choice of what was sent, to be sent again.
        first_answer: what the service made of a picture before anything else was sent.
    """

    process: LiveProcess
    statuses: Counter[int] = field(default_factory=Counter)
    conversations: int = 0
    resident_bytes: list[int] = field(default_factory=list)
    kept: list[httpx.Request] = field(default_factory=list)
    chance: Random = field(default_factory=lambda: Random(0))
    first_answer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first_answer = self.classify_known()

    @property
    def sent(self) -> int:
        """Requests that were answered."""
        return self.statuses.total()

    def send(
        self, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None, method: str = "POST"
    ) -> httpx.Response:
        """The answer to a request, which has been judged; a request that hangs raises httpx.ReadTimeout."""
        # Header values may be anything that a byte is.
        raw = {name: value.encode("latin-1", "replace") for name, value in (headers or {}).items()}
        request = self.process.client.build_request(method, path, content=content, headers=raw)
        answer = self.process.client.send(request)
        self.judge(answer.status_code, answer.headers, answer.content)
        self._keep(request)
        return answer

    def judge(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """Count an answer: it is no fault of the server's, and an error says what was wrong."""
        self.count(status)
        if status >= 500:
            log = self.process.log.read_text()[-5000:]
            assert status == 503, f"{content.decode()}\n{log}"
            assert "retry-after" in headers
        if status >= 400:
            assert_problem(status, headers, content)

    def count(self, status: int) -> None:
        """Count an answer; 0 for a connection that was closed without one."""
        self.statuses[status] += 1
        if self.sent % SAMPLE_EVERY == 0:
            self.resident_bytes.append(resident_bytes(self.process.running.pid))

    def send_kept(self) -> None:
        """Send what was kept once more."""
        for request in self.kept:
            answer = self.process.client.send(request)
            self.judge(answer.status_code, answer.headers, answer.content)

    def classify_known(self) -> dict[str, Any]:
        """The answer for one picture, always the same."""
        return self.process.client.post("/classify", content=random_png()).raise_for_status().json()

    def _keep(self, request: httpx.Request) -> None:
        if len(self.kept) < KEPT:
            self.kept.append(request)
        elif (place := self.chance.randrange(self.sent)) < KEPT:
            self.kept[place] = request


@contextmanager
def fuzzed_service(folder: Path) -> Iterator[FuzzedService]:
    """A service with small bundles and small limits, on a free port."""
    models = folder / "models"
    write_explained_bundle(models / "tiny" / "1")
    write_bundle(models / "color" / "1", seed=1, channels=3, decoder=False)
    write_bundle(models / "stereo" / "1", seed=3, channels=2, pose_shape=(2, 2))
    write_bundle(models / "spare" / "1", seed=2)
    settings = {
        "default_model": "tiny",
        "admin_key": ADMIN_KEY,
        "log_level": "warning",
        "rescan_s": 0,
        "grpc_port": 0,
        "metrics_port": 0,
    }
    with live_process(models, folder / "log", **settings, **LIMITS) as process:
        process.client.timeout = LIMIT_S
        yield FuzzedService(process)


def assert_problem(status: int, headers: Mapping[str, str], content: bytes) -> None:
    """The answer is RFC 9457's problem+json, and not much of it."""
    assert headers["content-type"] == "application/problem+json", content
    problem = json.loads(content)
    assert problem["status"] == status
    assert problem["type"].startswith("/problems/")
    assert problem["title"]
    assert problem["detail"]
    assert len(content) < PROBLEM_BYTES


def assert_sound(answer: httpx.Response) -> None:
    """Every number in a 200 is finite, a probability within 0-1, and every picture a PNG."""
    if answer.headers["content-type"] == "image/png":
        assert answer.content.startswith(b"\x89PNG")
        return
    for name, value in _fields(answer.json()):
        if name == "probability":
            assert 0 <= value <= 1
        if name in NUMBERS:
            assert_finite(value)
        if name in PICTURES and value is not None:
            assert base64.b64decode(value, validate=True).startswith(b"\x89PNG")


def assert_finite(numbers: list[Any]) -> None:
    """Numbers in lists, at any depth; NaN would be null in JSON."""
    for one in numbers:
        if isinstance(one, list):
            assert_finite(one)
        else:
            assert type(one) in (int, float)
            assert math.isfinite(one)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Every name and value, at any depth."""
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _fields(inner)


def resident_bytes(process: int) -> int:
    """Memory that a process holds at the moment; 0 where the system does not tell by file."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)
