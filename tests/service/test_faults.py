"""Faults, made on purpose and over a real socket: everybody is answered, and what can go on goes on."""

import http.client
import json
import shutil
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from service.http.graceful_server import LINGER_S
from tests.support.faulty_bundle import write_slow_bundle, write_touchy_bundle
from tests.support.http_load import Load, under_load
from tests.support.live_process import KILLABLE, LINGERING, LiveProcess, live_process
from tests.support.live_service import is_closed, live_service, settings_for, wait_until
from tests.support.small_pictures import to_npy, to_png
from tests.support.tiny_bundle import (
    CLASSES,
    SIDE,
    encoder_model,
    replace_file,
    run_model,
    write_bundle,
)

ANSWERED = "capsnet_requests_total"
QUEUED = "capsnet_queue_images"
COMPUTED = "capsnet_batch_images_sum"
NPY = {"Content-Type": "application/x-npy"}
ALL_AT_ONCE = 200


def noise(images: int = 1, seed: int = 0) -> np.ndarray:
    """Pictures uint8 [N, H, W, 1] without a white pixel."""
    return np.random.default_rng(seed).integers(0, 255, (images, SIDE, SIDE, 1), np.uint8)


def png(seed: int = 0, *, white: bool = False) -> bytes:
    picture = noise(seed=seed)[0, :, :, 0]
    picture[0, 0] = 255 if white else 0
    return to_png(picture)


def probabilities(answer: dict[str, Any]) -> np.ndarray:
    """Of an answer of /classify, [N, J] in the order of the classes."""
    by_label = [{c["label"]: c["probability"] for c in result["classes"]} for result in answer["results"]]
    return np.array([[one[label] for label in CLASSES] for one in by_label], np.float32)


def expected(bundle: Path, pictures: np.ndarray) -> np.ndarray:
    """What the bundle's graph makes of pictures uint8 [N, H, W, 1], without the service: [N, J]."""
    return run_model((bundle / "encoder.onnx").read_bytes(), pixels=pictures.astype(np.float32) / 255)[0]


def classify(service: LiveProcess, content: bytes) -> httpx.Response:
    return service.client.post("/classify", content=content)


def problem_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()["type"].removeprefix("/problems/")


# -- inference threads ---------------------------------------------------------------------------------------


def test_a_thread_that_dies_is_told_to_everyone_and_ends_the_service_so_that_it_is_started_again(tmp_path):
    write_slow_bundle(tmp_path / "models" / "slow" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", program=KILLABLE, threads=1) as service:
        # Its one thread is nearly always at its work.
        with under_load(service.address, 4, png()) as load:
            wait_until(lambda: len(load.of_status(200)) > 4)
            service.kill_inference_thread()
            with suppress(httpx.TransportError):  # it may have ended before the last look
                wait_until(lambda: service.client.get("/healthz").status_code == 503)
                for path in ("/healthz", "/v2/health/live"):
                    answer = service.client.get(path)
                    assert (answer.status_code, problem_of(answer)) == (503, "inference-stopped")
                    assert "slow/1" in answer.json()["detail"]
                assert service.client.get("/readyz").status_code == 503
            assert service.running.wait(60) == 1
        assert {outcome.status for outcome in load.outcomes} == {200, 503}
        refused = load.of_status(503)
        assert all("died" in json.loads(outcome.answer)["detail"] for outcome in refused)
        assert all(outcome.retry_after for outcome in refused)
        assert "an inference thread of slow/1 died; restart the service" in service.log.read_text()


def test_a_session_that_raises_fails_the_request_at_fault_and_none_of_its_batch(tmp_path):
    bundle = write_touchy_bundle(tmp_path / "models" / "touchy" / "1")
    wanted = [
        expected(bundle, np.array(Image.open(BytesIO(png(seed))))[None, :, :, None]) for seed in range(7)
    ]
    with (
        live_process(tmp_path / "models", tmp_path / "log", threads=1) as service,
        ThreadPoolExecutor(8) as senders,
    ):

        def a_batch_has_failed() -> bool:
            answers = [senders.submit(classify, service, png(seed)) for seed in range(7)]
            bad = classify(service, png(white=True))
            for answer, right in zip(answers, wanted, strict=True):
                np.testing.assert_allclose(probabilities(answer.result().json()), right, atol=1e-5)
            assert (bad.status_code, problem_of(bad)) == (500, "internal-error")
            return any("running them one by one" in line["message"] for line in service.lines)

        wait_until(a_batch_has_failed)
        assert service.client.get("/readyz").status_code == 200


# -- clients -------------------------------------------------------------------------------------------------


def test_the_work_of_clients_that_hang_up_is_skipped_and_nothing_of_them_stays(tmp_path):
    write_slow_bundle(tmp_path / "models" / "slow" / "1")
    head = f"POST /classify HTTP/1.1\r\nHost: test\r\nContent-Length: {len(png())}\r\n\r\n"
    with live_process(tmp_path / "models", tmp_path / "log", threads=1) as service:
        assert classify(service, png()).status_code == 200
        descriptors = service.metric("process_open_fds")
        with ExitStack() as connected:
            for _ in range(ALL_AT_ONCE):
                client = connected.enter_context(socket.create_connection(service.address))
                client.sendall(head.encode() + png())
            wait_until(lambda: service.metric(QUEUED) > ALL_AT_ONCE / 2)
        assert classify(service, png()).status_code == 200
        wait_until(lambda: service.metric(QUEUED) == 0)
        assert service.metric(COMPUTED) < ALL_AT_ONCE * 3 / 4
        wait_until(lambda: service.metric("process_open_fds") <= descriptors)
        gone = service.metric(ANSWERED, route="/classify", status="499")
        assert gone > ALL_AT_ONCE / 2


def test_a_full_queue_refuses_at_once_and_answers_those_it_holds(tmp_path):
    write_slow_bundle(tmp_path / "models" / "slow" / "1")
    # The first request takes 0.02 s an image or more, so that the second one finds it waiting.
    limits = {"queue_images": 240, "max_images_per_request": 240, "max_reconstructions": 240, "max_batch": 4}
    with (
        live_process(tmp_path / "models", tmp_path / "log", threads=1, **limits) as service,
        ThreadPoolExecutor(1) as other,
    ):
        pictures = to_npy(noise(240))
        first = other.submit(service.client.post, "/classify", content=pictures, headers=NPY)
        wait_until(lambda: service.metric(QUEUED) > 0)
        second = service.client.post("/classify", content=pictures, headers=NPY)
        assert not first.done()
        assert (second.status_code, problem_of(second)) == (503, "overloaded")
        assert int(second.headers["Retry-After"]) >= 1
        assert first.result().status_code == 200
        assert len(first.result().json()["results"]) == 240


# -- the end -------------------------------------------------------------------------------------------------


def errors_in(service: LiveProcess) -> list[dict[str, Any]]:
    """Of its log, all of which is JSON."""
    return [line for line in service.lines if line["level"] in {"error", "critical"}]


def test_sigterm_under_load_leaves_no_request_without_a_whole_answer(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with (
        live_process(tmp_path / "models", tmp_path / "log", program=LINGERING) as service,
        under_load(service.address, 32, png()) as load,
    ):
        wait_until(lambda: len(load.of_status(200)) > 200)
        service.stop()
        assert service.running.wait(60) == 0
    assert not load.lost
    assert {outcome.status for outcome in load.outcomes} <= {200, 503}
    assert not errors_in(service)


def test_a_busy_connection_stays_open_for_a_moment_after_sigterm(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")

    def is_answered() -> bool:
        with live_process(tmp_path / "models", tmp_path / "log") as service:
            connection = http.client.HTTPConnection(*service.address, timeout=60)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            stopped = time.monotonic()
            service.stop()
            wait_until(lambda: is_closed(service.address))
            try:
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException):
                assert time.monotonic() > stopped + LINGER_S  # the test was held up
                return False
            assert answer.headers["Connection"] == "close"
            return answer.status == 200

    wait_until(is_answered)


def test_a_half_sent_upload_holds_the_end_up_no_longer_than_the_deadline_and_costs_nobody_else(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    settings = {"program": LINGERING, "deadline_ms": 1000}
    with (
        live_process(tmp_path / "models", tmp_path / "log", **settings) as service,
        socket.create_connection(service.address) as stalled,
        under_load(service.address, 8, png()) as load,
    ):
        stalled.sendall(b"POST /classify HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nhalf")
        wait_until(lambda: len(load.of_status(200)) > 50)
        service.stop()
        assert service.running.wait(30) == 0
    assert not load.lost
    assert not errors_in(service)


# -- bundles -------------------------------------------------------------------------------------------------


def publish_the_next_version(models: Path, aside: Path, number: int) -> None:
    """Version 1 + number, written aside and renamed."""
    bundle = write_bundle(aside / "tiny" / str(1 + number), seed=number)
    bundle.rename(models / "tiny" / bundle.name)


def exchange_the_version(models: Path, aside: Path, number: int) -> None:
    """Version 1 is moved away and another moved in; no file system does both at once."""
    bundle = write_bundle(aside / "new" / "tiny" / "1", seed=number)
    if number:
        (models / "tiny" / "1").rename(aside / str(number))
        time.sleep(0.05)
    bundle.rename(models / "tiny" / "1")


def answers_of(load: Load) -> list[dict[str, Any]]:
    return [json.loads(outcome.answer) for outcome in load.of_status(200)]


@pytest.mark.parametrize("times", [6, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("publish", [publish_the_next_version, exchange_the_version])
def test_a_bundle_replaced_again_and_again_under_load_fails_no_request(tmp_path, publish, times):
    models, aside = tmp_path / "models", tmp_path / "aside"
    (models / "tiny").mkdir(parents=True)
    aside.mkdir()
    publish(models, aside, 0)
    pictures = noise(12)  # more than one batch holds
    seeds = range(times + 1)
    right = [run_of_seed(tmp_path / "right" / str(seed), seed, pictures) for seed in seeds]
    with (
        live_process(models, tmp_path / "log", rescan_s=0.1) as service,
        under_load(service.address, 4, to_npy(pictures), kind=NPY["Content-Type"]) as load,
    ):

        def answers_as(number: int) -> bool:
            latest = load.outcomes[-1:]
            return any(
                one.status == 200 and seed_of(json.loads(one.answer), right) == number for one in latest
            )

        for number in seeds:
            if number:
                publish(models, aside, number)
            wait_until(lambda number=number: answers_as(number))
    assert {outcome.status for outcome in load.outcomes} == {200}
    found = [(answer["version"], seed_of(answer, right)) for answer in answers_of(load)]
    assert {seed for _, seed in found} == set(seeds)
    if publish is publish_the_next_version:
        assert all(version == 1 + seed for version, seed in found)


def run_of_seed(folder: Path, seed: int, pictures: np.ndarray) -> np.ndarray:
    return expected(write_bundle(folder / "tiny" / "1", seed=seed), pictures)


def seed_of(answer: dict[str, Any], right: list[np.ndarray]) -> int:
    """Of the one bundle that all of the answer comes from."""
    found = probabilities(answer)
    (seed,) = [seed for seed, one in enumerate(right) if np.abs(one - found).max() < 1e-4]
    return seed


def flip_a_byte(bundle: Path) -> None:
    content = bytearray((bundle / "encoder.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / "encoder.onnx").write_bytes(content)


def leave_out_the_manifest(bundle: Path) -> None:
    (bundle / "manifest.json").unlink()


def put_a_graph_with_other_weights(bundle: Path) -> None:
    graph = encoder_model(np.random.default_rng(99), classes=3, size=4)
    replace_file(bundle, "encoder", graph.SerializeToString())


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (flip_a_byte, "encoder.onnx has sha256"),
        (leave_out_the_manifest, "manifest.json does not exist"),
        (put_a_graph_with_other_weights, "samples: probabilities differs"),
    ],
)
def test_a_bundle_that_is_not_what_it_should_be_is_refused_until_it_is_mended(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    whole = write_bundle(tmp_path / "whole" / "tiny" / "2")
    with live_service(settings_for(tmp_path / "models", rescan_s=0.1)) as client:
        spoilt = shutil.copytree(whole, tmp_path / "aside")
        spoil(spoilt)
        bundle = spoilt.rename(tmp_path / "models" / "tiny" / "2")
        wait_until(lambda: newest(client)["state"] == "refused")
        assert reason in newest(client)["reason"]
        assert refused_in_metrics(client) == [{"model": "tiny", "version": "2"}]
        assert client.post("/classify", content=png()).json()["version"] == 1
        shutil.copytree(whole, bundle, dirs_exist_ok=True)
        wait_until(lambda: client.post("/classify", content=png()).json()["version"] == 2)
        assert newest(client) == {**newest(client), "version": 2, "state": "loaded"}
        assert refused_in_metrics(client) == []


def test_a_bundle_that_is_copied_file_by_file_is_served_once_it_is_whole(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    whole = write_bundle(tmp_path / "whole" / "tiny" / "2")
    with live_service(settings_for(tmp_path / "models", rescan_s=0.1)) as client:
        bundle = tmp_path / "models" / "tiny" / "2"
        bundle.mkdir()
        for file in ("manifest.json", "samples.npz", "decoder.onnx"):
            shutil.copy(whole / file, bundle)
            wait_until(lambda: newest(client)["version"] == 2 and newest(client)["state"] == "refused")
            assert client.post("/classify", content=png()).json()["version"] == 1
        content = (whole / "encoder.onnx").read_bytes()
        with (bundle / "encoder.onnx").open("wb") as file:
            for start in range(0, len(content), 1 + len(content) // 3):
                file.write(content[start : start + 1 + len(content) // 3])
                file.flush()
                assert client.post("/classify", content=png()).status_code == 200
        wait_until(lambda: client.post("/classify", content=png()).json()["version"] == 2)


def newest(client: httpx.Client) -> dict[str, Any]:
    """The newest version as /models shows it."""
    return client.get("/models").json()["models"][0]["versions"][0]


def refused_in_metrics(client: httpx.Client) -> list[dict[str, str]]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return [s.labels for family in families for s in family.samples if s.name == "capsnet_model_refused"]
