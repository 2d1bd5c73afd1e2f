"""Request ids, one log line and one count for every request."""

import asyncio
import signal
import socket
import subprocess
import sys

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.types import ASGIApp

from service import errors
from service.http.request_log import RequestLog
from service.observability.request_metrics import RequestMetrics
from tests.support.live_service import wait_until
from tests.support.logged_process import KEYS
from tests.support.small_pictures import saved, to_npy
from tests.support.tiny_bundle import write_bundle

POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}


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
    headers = {"Content-Type": "application/x-npy"}
    array = to_npy(np.zeros((3, 28, 28, 1), np.uint8))
    answer, line = process.asked("POST", "/classify", content=array, headers=headers)
    assert answer.status_code == 200
    assert (line["model"], line["images"]) == ("tiny/1", 3)


def test_the_line_of_a_reconstruction_counts_its_image(process):
    picture = saved(Image.new("L", (28, 28)), "PNG")
    answer, line = process.asked("POST", "/reconstruct", files={"image": picture})
    assert answer.status_code == 200
    assert (line["model"], line["images"]) == ("tiny/1", 1)


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


def inside(app: FastAPI) -> ASGIApp:
    app.add_middleware(RequestLog, metrics=RequestMetrics())
    return app


def around(app: FastAPI) -> ASGIApp:
    """FastAPI answers the fault itself, and then raises it."""
    app.add_exception_handler(Exception, lambda *_: errors.internal_error())
    return RequestLog(app, metrics=RequestMetrics())


@pytest.mark.parametrize("place", [inside, around])
def test_a_fault_of_ours_is_a_500_with_an_id_and_a_traceback_in_the_log(caplog, place):
    framework = FastAPI()
    app = place(framework)

    @framework.get("/fault")
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
