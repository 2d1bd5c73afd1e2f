"""Server-Timing: where the time of a request went, in one process and with several workers."""

import asyncio
import base64
import re
import socket
from collections.abc import Iterator
from http.client import HTTPResponse

import httpx
import numpy as np
import pytest

from service.observability.timings import Part, Timings, begin_timings, end_part, timings_of_request
from tests.support.live_process import live_process
from tests.support.live_service import live_service, settings_for
from tests.support.slow_loading import hold_loading
from tests.support.small_pictures import to_png
from tests.support.tiny_bundle import write_bundle
from tests.support.tiny_explain import write_explained_bundle

PARTS = ["receive", "parse", "decode", "queue", "compute", "encode", "total"]
TENSOR = {"name": "pixels", "shape": [1, 28, 28, 1], "datatype": "FP32", "data": [0.5] * 784}


def timing(answer: httpx.Response) -> dict[str, float]:
    """The milliseconds of each part."""
    entries = answer.headers["server-timing"].split(", ")
    assert all(re.fullmatch(r"[a-z]+;dur=\d+\.\d{3}", entry) for entry in entries), entries
    return {name: float(ms) for name, ms in (entry.split(";dur=") for entry in entries)}


def picture(side: int = 28) -> bytes:
    return to_png(np.eye(side, dtype=np.uint8) * 255)


SWEPT = {"image": base64.b64encode(picture()).decode(), "sweep": {"dimensions": [0], "step": 0.1}}
PICTURES = {
    "/classify": ("/classify", {"files": {"images": picture()}}),
    "/segment, which runs a graph twice": ("/segment", {"files": {"images": picture()}}),
    "/explain": ("/explain", {"files": {"images": picture()}}),
    "/reconstruct": ("/reconstruct", {"files": {"image": picture()}}),
    "a large picture": ("/reconstruct", {"files": {"image": picture(64)}}),
    "a sweep as a grid": ("/reconstruct", {"json": SWEPT, "headers": {"Accept": "image/png"}}),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("models")
    for name in ("tiny", "second"):
        write_explained_bundle(root / name / "1")
    with live_service(settings_for(root, default_model="tiny")) as client:
        yield client


@pytest.mark.parametrize(("path", "sent"), PICTURES.values(), ids=PICTURES.keys())
def test_every_part_of_the_way_of_a_picture_is_there_in_its_order(client, path, sent):
    answer = client.post(path, **sent)
    assert answer.status_code == 200
    assert list(timing(answer)) == PARTS


def test_the_parts_are_within_the_whole(client):
    for _ in range(5):
        parts = timing(client.post("/classify", files={"images": picture()}))
        total = parts.pop("total")
        assert all(ms >= 0 for ms in parts.values())
        assert sum(parts.values()) <= total + 0.01


def test_the_first_request_for_a_model_says_how_long_it_was_loaded(client):
    url = "/classify?model=second"
    first, second = (timing(client.post(url, files={"images": picture()})) for _ in range(2))
    assert list(first) == ["receive", "parse", "load", *PARTS[2:]]
    assert first["load"] > first["compute"]
    assert list(second) == PARTS


def test_a_deadline_that_passes_while_a_model_is_loaded_counts_as_that(tmp_path, monkeypatch):
    may_go_on = hold_loading(monkeypatch, "second")
    for name in ("tiny", "second"):
        write_bundle(tmp_path / name / "1")
    try:
        with live_service(settings_for(tmp_path, default_model="tiny", deadline_ms=3000)) as client:
            late = client.post("/classify?model=second", files={"images": picture()})
            may_go_on.set()
    finally:
        may_go_on.set()
    assert late.status_code == 504
    assert late.headers["retry-after"] == "1"
    parts = timing(late)
    assert list(parts) == ["receive", "parse", "load", "encode", "total"]
    assert parts["load"] > 1500 > parts["encode"]


def test_a_deadline_that_passes_while_pictures_are_decoded_counts_as_that(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    limits = {"deadline_ms": 2500, "max_request_pixels": 3_000_000_000, "decode_threads": 1}
    with live_service(settings_for(tmp_path, default_model="tiny", **limits)) as client:
        late = client.post("/classify", files=[("images", picture(3000))] * 250)
    assert late.status_code == 504
    parts = timing(late)
    assert list(parts) == ["receive", "parse", "decode", "encode", "total"]
    assert parts["decode"] > parts["encode"]


def test_a_pose_has_no_picture_to_decode(client):
    answer = client.post("/reconstruct", json={"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"})
    assert list(timing(answer)) == [part for part in PARTS if part != "decode"]


def test_tensors_have_no_pictures_to_decode(client):
    answer = client.post("/v2/models/tiny/infer", json={"inputs": [TENSOR]})
    assert list(timing(answer)) == [part for part in PARTS if part != "decode"]


def test_where_no_part_is_known_there_is_the_whole(client):
    assert list(timing(client.get("/models"))) == ["total"]
    assert list(timing(client.get("/no/such/path"))) == ["total"]


def test_an_error_says_how_far_it_came(client):
    broken = client.post("/classify", files={"images": b"no picture"})
    assert broken.status_code == 415
    assert list(timing(broken)) == ["receive", "parse", "decode", "encode", "total"]


def test_an_array_that_cannot_be_read_counts_as_decoding(client):
    broken = client.post("/classify", content=b"no array", headers={"Content-Type": "application/x-npy"})
    assert broken.status_code == 422
    assert list(timing(broken)) == ["receive", "decode", "encode", "total"]


GET = b"GET /models HTTP/1.1\r\nHost: test\r\n"
POST = b"POST /classify HTTP/1.1\r\nHost: test\r\nX-API-Key: open\r\n"
REFUSED = {
    "no key": (GET + b"\r\n", 401),
    "too many requests of a key": (GET + b"X-API-Key: slow\r\n\r\n", 429),
    "not HTTP": (b"nonsense\r\n\r\n", 400),
    "two hosts": (GET + b"Host: other\r\n\r\n", 400),
    "a long head": (GET + b"X-Long: " + b"x" * 2**17 + b"\r\n\r\n", 431),
    "a large body": (POST + b"Content-Length: 999999999\r\n\r\n", 413),
    "a chunk without a length": (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "a form that is none": (
        POST + b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 2\r\n\r\n--",
        400,
    ),
    "another method": (b"PUT" + POST[4:] + b"\r\n", 405),
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service with two keys, of which `slow` may send no more for a quarter of an hour."""
    root = tmp_path_factory.mktemp("keyed")
    write_bundle(root / "models" / "tiny" / "1")
    keys = root / "keys"
    keys.write_text("free:open\nslow:slow rate=0.001\n")
    with live_service(settings_for(root / "models", api_keys_file=keys)) as client:
        client.get("/models", headers={"x-api-key": "slow"}).raise_for_status()
        yield client


@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_request_says_where_its_time_went(keyed, sent, status):
    with socket.create_connection((keyed.base_url.host, keyed.base_url.port), timeout=60) as connection:
        connection.sendall(sent)
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == status
        assert re.search(r"(^|, )total;dur=\d+\.\d{3}$", answer.headers["server-timing"])


def test_with_workers_the_parts_of_the_engine_process_are_there_too(tmp_path):
    for name in ("capsnet-digits", "second"):  # the first has the name of the default model
        write_bundle(tmp_path / "models" / name / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        answer = service.client.post("/classify", files={"images": picture()})
        parts = timing(answer)
        assert list(parts) == PARTS
        assert 0 < parts["compute"] < parts["total"]
        first = timing(service.client.post("/classify?model=second", files={"images": picture()}))
        assert list(first) == ["receive", "parse", "load", *PARTS[2:]]


def test_requests_side_by_side_have_their_own():
    async def request(name: str) -> list[str]:
        timings = begin_timings()
        await asyncio.sleep(0.01)
        end_part(name)
        await asyncio.create_task(part_of(f"{name}-task"))
        return [part.name for part in timings.parts]

    async def part_of(name: str) -> None:
        end_part(name)

    async def both() -> list[list[str]]:
        return await asyncio.gather(request("a"), request("b"))

    assert asyncio.run(both()) == [["a", "a-task"], ["b", "b-task"]]
    assert timings_of_request() is None


def test_milliseconds_of_one_name_are_added_up():
    timings = Timings()
    timings.add(Part("compute", 1.0, 1.25), Part("queue", 2.0, 2.001), Part("compute", 3.0, 3.5))
    assert timings.header().decode().startswith("compute;dur=750.000, queue;dur=1.000, total;dur=")
