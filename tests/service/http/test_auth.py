"""Keys, request ids and log lines, on a service process of its own, whose standard error is read."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request
from pydantic import SecretStr

from service.errors import AdministrationOffError, AdminKeyError
from service.http import auth
from service.http.request_log import RequestLog
from service.observability.metrics import Metrics
from service.settings import Settings
from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.tiny_bundle import write_bundle

KEYS = ("a-first-key", "a-second-key")
ADMIN_KEY = "the-admin-key"
PAGE = "https://page.example"
POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "x-api-key",
}


@dataclass
class Process:
    """A running service: clients with and without a key, and what it has logged."""

    client: httpx.Client
    stranger: httpx.Client
    log: Path

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def line_of(self, request_id: str) -> dict[str, Any]:
        """The log line of a request, once it is written."""
        wait_until(lambda: request_id in self.log.read_text())
        (line,) = [line for line in self.lines if line.get("id") == request_id]
        return line

    def asked(self, method: str, path: str, **options: Any) -> tuple[httpx.Response, dict[str, Any]]:
        """An answer and its log line."""
        headers = {"X-Request-ID": uuid4().hex, **options.pop("headers", {})}
        answer = self.client.request(method, path, headers=headers, **options)
        return answer, self.line_of(headers["X-Request-ID"])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    models = tmp_path_factory.mktemp("models")
    write_bundle(models / "tiny" / "1")
    log = tmp_path_factory.mktemp("log") / "stderr"
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
            keyed = httpx.Client(base_url=address, headers={"X-API-Key": KEYS[0]})
            with keyed, httpx.Client(base_url=address) as stranger:
                yield Process(keyed, stranger, log)
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


# -- ids and lines -----------------------------------------------------------------------------------------


def test_a_request_gets_one_line_that_tells_what_was_asked_and_answered(process):
    answer, line = process.asked("POST", "/reconstruct", json=POSE)
    assert answer.status_code == 200
    assert line["level"] == "info"
    assert (line["method"], line["path"], line["status"]) == ("POST", "/reconstruct", 200)
    assert line["bytes_in"] == len(answer.request.content)
    assert line["bytes_out"] == len(answer.content)
    assert line["client"] == "127.0.0.1"
    assert 0 < line["duration_ms"] < 60_000
    assert line["model"] == "tiny/1"
    assert line["time"].startswith("20")
    assert "problem" not in line


def test_the_line_of_a_classification_counts_its_images(process):
    array = BytesIO()
    np.save(array, np.zeros((3, 28, 28, 1), np.uint8))
    headers = {"Content-Type": "application/x-npy"}
    answer, line = process.asked("POST", "/classify", content=array.getvalue(), headers=headers)
    assert answer.status_code == 200
    assert (line["model"], line["images"]) == ("tiny/1", 3)


def test_the_line_of_an_error_names_its_problem(process):
    answer, line = process.asked("POST", "/classify", content=b"no picture")
    assert line["status"] == answer.status_code == 415
    assert line["problem"] == answer.json()["type"]


def test_the_clients_id_comes_back(process):
    answer = process.client.get("/models", headers={"X-Request-ID": "order/7:a.b-c_d@e=f+g"})
    assert answer.headers["x-request-id"] == "order/7:a.b-c_d@e=f+g"


@pytest.mark.parametrize("unsafe", ["", "two words", 'a"quote', "x" * 129, "é", "a\tb", "a;b", "<b>"])
def test_an_id_that_is_long_or_unsafe_is_replaced(process, unsafe):
    answer = process.client.get("/models", headers={"X-Request-ID": unsafe.encode()})
    assert answer.headers["x-request-id"] != unsafe
    assert answer.headers["x-request-id"].isalnum()


def test_every_answer_has_an_id_of_its_own(process):
    answers = [process.client.get(path) for path in ("/models", "/models", "/nothing", "/healthz")]
    answers.append(process.stranger.get("/models"))
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


def test_every_line_is_json_whatever_was_asked(process):
    odd, line = process.asked("GET", '/%0a{"level":"error"}%1b%5b31m%e2%80%a8%ff%00"')
    assert odd.status_code == 404
    assert line["path"].startswith('/\n{"level"')
    assert all(isinstance(line, dict) for line in process.lines)


def test_an_endless_path_is_cut(process):
    _, line = process.asked("GET", "/" + "long" * 5000)
    assert len(line["path"]) < 250


def test_probes_leave_no_lines(process):
    for path in ("/healthz", "/readyz", "/metrics"):
        process.stranger.get(path, headers={"X-Request-ID": f"probe-of-{path[1:]}"})
    process.asked("GET", "/models")
    assert "probe-of" not in process.log.read_text()


def test_a_client_that_hangs_up_is_logged_and_counted_as_499(process):
    address = (process.client.base_url.host, process.client.base_url.port)
    lines = ["POST /classify HTTP/1.1", "Host: test", f"X-API-Key: {KEYS[0]}", "Content-Length: 100"]
    with socket.create_connection(address) as connection:
        connection.sendall("\r\n".join([*lines, "X-Request-ID: gone", "", "half"]).encode())
    line = process.line_of("gone")
    assert (line["status"], line["bytes_in"]) == (499, 4)
    counted = 'capsnet_requests_total{route="/classify",status="499"} 1.0'
    assert counted in process.client.get("/metrics").text


def test_what_is_no_request_is_a_line_too(process):
    address = (process.client.base_url.host, process.client.base_url.port)
    with socket.create_connection(address) as connection:
        connection.sendall(b"this is no HTTP\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    wait_until(lambda: any(line.get("problem") == "/problems/malformed-request" for line in process.lines))


def test_a_fault_of_ours_is_a_500_with_an_id_and_a_traceback_in_the_log(caplog):
    app = FastAPI()
    app.add_middleware(RequestLog, metrics=Metrics())

    @app.get("/fault")
    async def fault() -> None:
        raise RuntimeError("a secret")

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/fault", headers={"X-Request-ID": "faulty"})

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
    assert answer.headers["x-request-id"] == "faulty"
    assert "secret" not in answer.text
    (failed,) = [record for record in caplog.records if record.exc_info]
    assert failed.args["id"] == "faulty"
    assert "a secret" in caplog.text
    assert any(record.levelname == "WARNING" and record.args["status"] == 500 for record in caplog.records)


def test_a_standard_error_that_nobody_reads_stops_neither_answers_nor_the_end(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "--models",
        str(tmp_path),
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as running:
        try:
            line = running.stdout.readline()
            address = next(word for word in line.split() if word.startswith("http://"))
            with httpx.Client(base_url=address) as client:
                for _ in range(300):  # lines of half a kilobyte, into a pipe that holds 64
                    assert client.get(f"/{'long' * 100}").status_code == 404
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
        finally:
            running.kill()


# -- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": KEYS[0]},
        {"X-API-Key": KEYS[1]},
        {"Authorization": f"Bearer {KEYS[1]}"},
        {"Authorization": f"bearer  {KEYS[0]}"},
        {"Authorization": "Basic something-for-a-proxy", "X-API-Key": KEYS[0]},
        {"X-API-Key": ADMIN_KEY},
    ],
)
def test_every_key_opens_in_either_header(process, headers):
    assert process.stranger.get("/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "wrong"},
        {"X-API-Key": KEYS[0][:-1]},
        {"X-API-Key": f"{KEYS[0]}, {KEYS[1]}"},
        {"X-API-Key": KEYS[0].upper()},
        {"Authorization": KEYS[0]},
        {"Authorization": f"Basic {KEYS[0]}"},
        {"Authorization": "Bearer"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Cookie": f"X-API-Key={KEYS[0]}"},
    ],
)
def test_without_one_of_the_keys_the_answer_is_401(process, headers):
    answer = process.stranger.get("/models", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (401, "/problems/key-required")
    assert answer.headers["www-authenticate"] == 'Bearer realm="capsnet"'
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_key_in_the_query_opens_nothing(process):
    assert process.stranger.get("/models", params={"api_key": KEYS[0]}).status_code == 401


def test_the_401_comes_before_the_body_is_asked_for(process):
    address = (process.client.base_url.host, process.client.base_url.port)
    lines = ["POST /classify HTTP/1.1", "Host: test", "Content-Length: 1000", "Expect: 100-continue", "", ""]
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall("\r\n".join(lines).encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_every_documented_operation_needs_a_key_or_says_that_it_needs_none(process):
    document = process.stranger.get("/openapi.json").json()
    schemes = document["components"]["securitySchemes"]
    assert document["security"] == [{name: []} for name in schemes]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    open_paths = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answer = process.stranger.request(method, path.format_map(Anything()))
            if operation.get("security") == []:
                open_paths.add(path)
                assert answer.status_code != 401
            else:
                assert answer.status_code == 401
                assert "401" in operation["responses"]
    assert {"/healthz", "/readyz", "/metrics"} <= open_paths <= auth.OPEN


class Anything(dict[str, str]):
    """A value for every parameter of a path."""

    def __missing__(self, name: str) -> str:
        return "1"


def test_the_documentation_opens_without_a_key(process):
    assert process.stranger.get("/", follow_redirects=True).url.path == "/docs"
    for path in ("/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/openapi.json"):
        assert process.stranger.get(path).status_code == 200


def test_keys_are_never_logged(process):
    process.asked("GET", "/models", headers={"Authorization": f"Bearer {KEYS[1]}"})
    process.asked("GET", "/models", headers={"X-API-Key": "a-wrong-key"})
    said = process.log.read_text()
    assert all(key not in said for key in (*KEYS, ADMIN_KEY, "a-wrong-key"))


def test_without_keys_nothing_needs_one(tmp_path):
    with live_service(settings_for(tmp_path), ready=False) as client:
        assert client.get("/models").status_code != 401
        document = client.get("/openapi.json").json()
        assert "security" not in document
        assert "securitySchemes" not in document["components"]


# -- the admin key -----------------------------------------------------------------------------------------


def request_with(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": pairs})


def test_the_admin_key_opens_administration():
    settings = Settings(admin_key=SecretStr(ADMIN_KEY))
    auth.check_admin(request_with(x_api_key=ADMIN_KEY), settings)
    auth.check_admin(request_with(authorization=f"Bearer {ADMIN_KEY}"), settings)


@pytest.mark.parametrize("headers", [{}, {"x_api_key": KEYS[0]}, {"authorization": "Bearer wrong"}])
def test_no_other_key_opens_administration(headers):
    settings = Settings(admin_key=SecretStr(ADMIN_KEY), api_keys=SecretStr(",".join(KEYS)))
    with pytest.raises(AdminKeyError, match="CAPSNET_ADMIN_KEY") as refusal:
        auth.check_admin(request_with(**headers), settings)
    assert ADMIN_KEY not in str(refusal.value)


@pytest.mark.parametrize("headers", [{}, {"x_api_key": ""}, {"x_api_key": KEYS[0]}])
def test_without_an_admin_key_there_is_no_administration(headers):
    with pytest.raises(AdministrationOffError, match="CAPSNET_ADMIN_KEY"):
        auth.check_admin(request_with(**headers), Settings(api_keys=SecretStr(",".join(KEYS))))


# -- pages of other origins --------------------------------------------------------------------------------


def test_a_preflight_passes_without_a_key(process):
    answer = process.stranger.options("/classify", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-api-key" in answer.headers["access-control-allow-headers"].lower()


def test_a_page_may_read_the_id_and_when_to_try_again(process):
    answer = process.client.get("/models", headers={"Origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    exposed = answer.headers["access-control-expose-headers"].lower()
    assert "x-request-id" in exposed
    assert "retry-after" in exposed


def test_a_page_may_read_that_its_key_is_wrong(process):
    answer = process.stranger.get("/models", headers={"Origin": PAGE})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_page_of_another_origin_may_read_nothing(process):
    other = {**PREFLIGHT, "Origin": "https://other.example"}
    assert process.stranger.options("/classify", headers=other).status_code == 400
    answer = process.client.get("/models", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_without_origins_no_page_may_read_anything(tmp_path):
    with live_service(settings_for(tmp_path), ready=False) as client:
        assert "access-control-allow-origin" not in client.get("/models", headers={"Origin": PAGE}).headers
        assert client.options("/classify", headers=PREFLIGHT).status_code == 405
