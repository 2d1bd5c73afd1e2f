"""What slow, many and endless uploads take of the service: bounded time, bounded memory, nobody's answer."""

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from starlette.types import Message

from service.errors import SlowBodyError
from service.http.limits import SMALL_BYTES, BodyLimit, BodyMemory
from service.settings import SettingsError, read_settings
from tests.support.live_process import live_process
from tests.support.live_service import live_service, metric, settings_for, wait_until
from tests.support.raw_http import CHUNKED, FORM, LENGTH, PART, PNG, connected, head, read_answer, read_to_end
from tests.support.small_pictures import random_png

RECEIVE_MS = 300
MIB = 2**20
JSON = "Content-Type: application/json"

# Route, headers, and the beginning of a body that never ends.
UPLOADS = [
    ("/classify", (PNG, LENGTH), b"\x89PNG"),
    ("/classify", (PNG, LENGTH), b""),
    ("/classify", (PNG, LENGTH, "Expect: 100-continue"), b""),
    ("/classify", (PNG, CHUNKED), b"4\r\n\x89PNG\r\n"),
    ("/classify", (FORM, LENGTH), PART),
    ("/classify", (FORM, CHUNKED), b"%x\r\n%s\r\n" % (len(PART), PART)),
    ("/segment", (PNG, LENGTH), b"\x89PNG"),
    ("/explain", (PNG, LENGTH), b"\x89PNG"),
    ("/reconstruct", (JSON, LENGTH), b'{"pose": ['),
    ("/reconstruct", (FORM, LENGTH), PART),
    ("/v2/models/tiny/infer", (JSON, LENGTH), b'{"inputs": ['),
    ("/v2/models/tiny/versions/1/infer", ("Inference-Header-Content-Length: 9", LENGTH), b"{"),
]


@pytest.fixture(scope="module")
def impatient(models: Path) -> Iterator[httpx.Client]:
    """A service to which no body may take longer than RECEIVE_MS."""
    with live_service(settings_for(models, receive_ms=RECEIVE_MS)) as client:
        yield client


@contextmanager
def stalled_uploads(client: httpx.Client, count: int, sent: bytes, declared: int) -> Iterator[None]:
    """Connections that have sent the beginning of a body, which the service has read, and send no more."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(connected(client))
            connection.sendall(head("/classify", PNG, f"Content-Length: {declared}") + sent)
        for _ in range(100):  # its event loop turns once for each, and reads from everybody
            assert client.get("/healthz").status_code == 200
        yield


def assert_too_slow(answer: bytes) -> None:
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    headers, _, body = answer.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 408 "), answer
    assert b"connection: close" in headers.lower()
    assert json.loads(body)["type"] == "/problems/slow-body"
    assert f"{RECEIVE_MS} ms" in json.loads(body)["detail"]


@pytest.mark.parametrize(("route", "headers", "begun"), UPLOADS)
def test_a_body_that_stops_coming_is_answered_408_and_its_connection_closed(impatient, route, headers, begun):
    with connected(impatient) as connection:
        connection.sendall(head(route, *headers) + begun)
        assert_too_slow(read_to_end(connection))


def test_a_body_that_drips_has_no_more_time_than_one_that_stops(impatient):
    with connected(impatient) as connection:
        connection.sendall(head("/classify", PNG, "Content-Length: 100000"))
        connection.settimeout(0.02)
        for _ in range(1000):
            connection.sendall(b".")
            try:
                answer = connection.recv(2**16)
                break
            except TimeoutError:
                continue
        assert_too_slow(answer)


def test_a_slow_body_is_counted_and_logged_as_408(impatient, caplog):
    def counted() -> float:
        return metric(impatient, "capsnet_requests_total", route="/segment", status="408")

    def logged() -> list[dict[str, object]]:
        records = [record for record in caplog.records if record.name == "service.http.request_log"]
        return [record.args for record in records if record.args["id"] == "slow-one"]

    before = counted()
    with caplog.at_level(logging.INFO, "service.http.request_log"), connected(impatient) as connection:
        connection.sendall(head("/segment", PNG, LENGTH, "X-Request-ID: slow-one"))
        assert b"x-request-id: slow-one" in read_to_end(connection)
        wait_until(logged)  # which comes a moment after the answer
    [line] = logged()
    assert (line["status"], line["problem"]) == (408, "/problems/slow-body")
    assert counted() == before + 1


def test_bodies_that_come_in_pieces_within_their_time_are_answered(models):
    content = random_png()
    with live_service(settings_for(models, receive_ms=20_000)) as client:
        for _ in range(20):
            with connected(client) as connection:
                connection.sendall(head("/classify", PNG, f"Content-Length: {len(content)}"))
                connection.sendall(content[:100])
                time.sleep(0.01)
                connection.sendall(content[100:])
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_an_answer_may_take_longer_than_a_body(models):
    content = random_png()
    with live_service(settings_for(models, receive_ms=1)) as client, connected(client) as connection:
        for _ in range(50):  # whose bodies come with their headers
            connection.sendall(head("/classify", PNG, f"Content-Length: {len(content)}") + content)
            status, _ = read_answer(connection)
            assert status == 200


def test_a_hundred_stalled_uploads_keep_nobody_from_an_answer(patient):
    with stalled_uploads(patient, 100, bytes(50_000), 100_000):
        for _ in range(20):
            assert patient.post("/classify", content=random_png()).status_code == 200


def test_a_hundred_stalled_uploads_hold_the_end_up_no_longer_than_the_deadline(models, tmp_path):
    with (
        live_process(models, tmp_path / "log", deadline_ms=2500, receive_ms=600_000) as service,
        stalled_uploads(service.client, 100, bytes(5000), 100_000),
    ):
        assert service.client.post("/classify", content=random_png()).status_code == 200
        service.stop()
        assert service.running.wait(30) == 0


def test_bodies_beyond_what_all_may_hold_are_answered_503_with_retry_after(models):
    limits = {"max_body_bytes": 3 * MIB, "uploads_bytes": 4 * MIB, "receive_ms": 600_000}
    large = bytes(2 * MIB)
    with live_service(settings_for(models, **limits)) as client:
        with stalled_uploads(client, 1, large, 3 * MIB):
            refused = client.post("/classify", content=large)
            assert refused.status_code == 503
            assert refused.json()["type"] == "/problems/overloaded"
            assert "CAPSNET_UPLOADS_BYTES" in refused.json()["detail"]
            assert int(refused.headers["retry-after"]) >= 1
            # For a small one there is room.
            assert client.post("/classify", content=random_png()).status_code == 200
        wait_until(lambda: client.post("/classify", content=large).status_code == 415)


def test_the_last_quarter_is_for_small_bodies(models):
    limits = {"max_body_bytes": 3 * MIB, "uploads_bytes": 4 * MIB, "receive_ms": 600_000}
    with (
        live_service(settings_for(models, **limits)) as client,
        stalled_uploads(client, 1, bytes(3 * MIB - 1), 3 * MIB),
    ):
        assert client.post("/classify", content=bytes(SMALL_BYTES + 1)).status_code == 503
        assert client.post("/classify", content=bytes(SMALL_BYTES)).status_code == 415


def test_after_clients_of_every_bad_kind_nothing_is_held(models):
    limits = {"max_body_bytes": MIB * 3 // 4, "uploads_bytes": MIB, "receive_ms": 200}
    settings = settings_for(models, **limits, max_images_per_request=2)
    with live_service(settings) as client:
        send_everything_bad(client)
        with stalled_uploads(client, 1, bytes(300_001), 300_002):
            rest = bytes(MIB - 300_001)
            assert len(rest) <= settings.max_body_bytes
            wait_until(lambda: client.post("/classify", content=rest).status_code == 415)


def send_everything_bad(client: httpx.Client) -> None:
    kinds = [(head(route, *headers), begun) for route, headers, begun in UPLOADS]
    with ExitStack() as stalled:
        for start, begun in kinds * 5:
            with connected(client) as gone:
                gone.sendall(start + begun)
            stalled.enter_context(connected(client)).sendall(start + begun + begun)
        client.post("/classify", content=bytes(MIB))
        client.post("/classify", content=iter([bytes(2**16)] * 16))
        client.post("/classify", content=b"no picture")
        client.post("/classify", files=[("images", bytes(1000))] * 3)
        client.post("/classify?top_k=0", content=bytes(1000))
        client.post("/nowhere", content=bytes(100_000))
        client.get("/classify")
        time.sleep(0.3)


@given(
    bodies=st.lists(
        st.lists(st.integers(0, 60), max_size=4).flatmap(
            lambda sizes: st.tuples(
                st.just(sizes), st.sampled_from(["end", "stall", "hang up", "fail", "cancel", "unread"])
            )
        ),
        min_size=1,
        max_size=8,
    )
)
@hypothesis_settings(max_examples=20)
def test_however_requests_end_what_they_held_is_given_back(bodies):
    receive_ms = 500 if any(end == "stall" for _, end in bodies) else 20_000
    limit = BodyLimit(read_all, max_bytes=100, memory=BodyMemory(200), receive_ms=receive_ms)

    async def run() -> None:
        requests = [asyncio.create_task(request(limit, sizes, end)) for sizes, end in bodies]
        await asyncio.sleep(0)
        assert limit.memory.held_bytes >= 0
        for task, (_, end) in zip(requests, bodies, strict=True):
            if end == "cancel":
                task.cancel()
        ended = await asyncio.gather(*requests, return_exceptions=True)
        for (_, end), how in zip(bodies, ended, strict=True):
            assert end == "stall" or not isinstance(how, SlowBodyError)

    asyncio.run(run())
    assert (limit.memory.held_bytes, limit.arriving) == (0, {})


async def read_all(scope, receive, send) -> None:
    """An application that holds what it reads, and a while longer."""
    if scope["end"] != "unread":
        while (message := await receive()).get("more_body"):
            pass
        await asyncio.sleep(0)
        if message["type"] != "http.disconnect" and scope["end"] == "fail":
            raise RuntimeError("a fault of ours")


async def request(limit: BodyLimit, sizes: list[int], end: str) -> None:
    messages = iter(sizes)

    async def receive() -> Message:
        await asyncio.sleep(0)
        for size in messages:
            return {"type": "http.request", "body": bytes(size), "more_body": True}
        if end == "hang up":
            return {"type": "http.disconnect"}
        if end == "stall":
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    await limit({"type": "http", "headers": [], "end": end}, receive, None)


def test_every_overdue_body_is_given_up_and_each_at_its_own_time():
    gone: list[str] = []

    async def begin(limit: BodyLimit, name: str) -> None:
        with pytest.raises(SlowBodyError, match="20 ms"):
            await request(limit, [1], "stall")
        gone.append(name)

    async def run() -> None:
        limit = BodyLimit(read_all, max_bytes=100, memory=BodyMemory(200), receive_ms=20)
        first = [asyncio.create_task(begin(limit, "first")) for _ in range(3)]
        await asyncio.sleep(0.01)
        await asyncio.gather(*first, begin(limit, "second"))

    asyncio.run(run())
    assert gone == ["first"] * 3 + ["second"]


def test_uploads_are_kept_in_memory_and_need_no_folder_to_write_to(models, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    large = random_png() + bytes(5 * MIB)  # more than Starlette itself keeps there
    files = [("images", random_png()), ("images", large)]
    with live_service(settings_for(models)) as client:
        assert client.post("/classify", files=files).status_code == 200


def test_a_body_that_would_never_find_room_is_a_wrong_setting():
    with pytest.raises(SettingsError, match=r"CAPSNET_UPLOADS_BYTES.*CAPSNET_MAX_BODY_BYTES"):
        read_settings(max_body_bytes=3 * MIB + 1, uploads_bytes=4 * MIB)
