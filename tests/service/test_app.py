"""The application around the two routes: readiness, what is loaded, documentation, overload."""

import asyncio
import gzip
import re
import socket
import threading
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.requests import ClientDisconnect, Request

from export.contract.manifest import read_manifest
from service.app import create_app
from service.http.key_use import KeyUse
from service.http.keys import Keys
from service.http.limits import BodyMemory
from service.http.picture_pool import PicturePool
from service.inference.engine import Engine
from service.models.local_models import LocalModels
from service.models.repository import Repository
from service.observability.metrics import Metrics
from service.observability.request_metrics import RequestMetrics
from service.routes import docs
from service.state import Service
from tests.support.faulty_bundle import write_slow_bundle
from tests.support.live_service import live_service, metric, settings_for, wait_until
from tests.support.raw_http import read_answer
from tests.support.slow_loading import hold_loading
from tests.support.small_pictures import saved, to_npy
from tests.support.tiny_bundle import SIDE, run_model, write_bundle

POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    broken = write_bundle(root / "tiny" / "2")
    (broken / "samples.npz").write_bytes(b"")
    return root


def large_png() -> bytes:
    """A file of a few kilobytes that takes tens of milliseconds to decode."""
    return saved(Image.new("L", (3000, 3000)), "PNG")


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models)) as client:
        yield client


def test_ready_says_what_is_loaded_and_on_which_device(client):
    assert client.get("/readyz").json() == {"status": "ready", "device": "cpu", "models": ["tiny/1"]}


def test_ready_says_which_versions_are_slower_than_they_could_be(client, monkeypatch):
    monkeypatch.setattr(Engine, "warnings", ["no CUDA graphs: out of memory"])
    assert client.get("/readyz").json()["warnings"] == ["tiny/1: no CUDA graphs: out of memory"]


def test_alive_is_alive(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.head("/healthz").status_code == client.head("/readyz").status_code == 200


def test_head_has_the_length_of_get_and_is_counted_under_its_route(client):
    answer = client.head("/models/nobody")
    wait_until(lambda: metric(client, "capsnet_requests_total", route="/models/{name}", status="404") == 1)
    assert answer.headers["content-length"] == client.get("/models/nobody").headers["content-length"]


def test_head_of_a_route_without_get_is_a_405(client):
    answer = client.head("/classify")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/healthz", "/v2/models/tiny/versions/1", "/docs"])
def test_a_405_lists_every_method_of_the_route(client, path):
    answer = client.post(path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/classify/", "/docs/", "/v2/"])
def test_a_slash_at_the_end_is_another_path_and_sends_nobody_elsewhere(client, path):
    answer = client.post(path, content=b"x", headers={"Host": "elsewhere.example"})
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/not-found"
    assert "location" not in answer.headers


def test_a_service_without_models_is_alive_but_not_ready_and_says_why(tmp_path):
    with live_service(settings_for(tmp_path / "nothing"), ready=False) as client:
        wait_until(lambda: "nothing" in client.get("/readyz").json()["detail"])
        assert client.get("/healthz").status_code == 200
        for answer in (client.get("/readyz"), client.post("/classify", content=b"x")):
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/not-ready")
            assert answer.headers["retry-after"].isdigit()


def test_where_nobody_looks_for_bundles_any_more_ready_says_so_though_a_model_is_loaded(models):
    def end(_: Repository) -> None:
        raise ZeroDivisionError

    with live_service(settings_for(models), ready=False, on_loaded=end) as client:
        wait_until(lambda: "looking for bundles has stopped" in client.get("/readyz").text)
        assert client.get("/readyz").status_code == 503
        assert client.post("/reconstruct", json=POSE).status_code == 200


def test_a_model_that_vanishes_while_they_are_listed_is_left_out(client, monkeypatch):
    async def with_one_that_is_gone(_) -> list[str]:
        return ["gone", "tiny"]

    monkeypatch.setattr(LocalModels, "names", with_one_that_is_gone)
    assert [model["name"] for model in client.get("/models").json()["models"]] == ["tiny"]


def test_models_lists_what_is_loaded_and_what_is_refused_and_why(client, models):
    (model,) = client.get("/models").json()["models"]
    refused, loaded = model["versions"]
    assert (model["name"], model["default"]) == ("tiny", True)
    assert (refused["version"], refused["state"]) == (2, "refused")
    assert refused["reason"].startswith("samples.npz has sha256")
    assert loaded == {
        "version": 1,
        "state": "loaded",
        "device": "cpu",
        "provider": "CPUExecutionProvider",
        "graphs": {"encoder": "encoder.onnx", "decoder": "decoder.onnx"},
        "encoder": "plain",
        "precision": "float32",
        "digest": read_manifest(models / "tiny" / "1").digest,
        "default": True,
    }


def test_a_model_is_shown_with_its_manifest(client):
    versions = client.get("/models/tiny").json()["versions"]
    manifest = next(version["manifest"] for version in versions if version["state"] == "loaded")
    assert manifest["class_names"] == ["0", "1", "2"]
    assert manifest["preprocessing"]["placement"] == "digit"


def test_the_documentation_asks_nobody_on_the_internet(client):
    page = client.get("/docs").text
    addresses = re.findall(r"""(?:href|src|url)["']?\s*[:=]\s*["']([^"']+)""", page)
    assert {"docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "openapi.json"} <= set(addresses)
    for address in addresses:
        assert address.startswith("data:") or client.get(f"/{address}").status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_the_documentations_script_comes_in_an_encoding_that_the_client_reads(client, encoding):
    with client.stream("GET", "/docs/swagger-ui-bundle.js", headers={"Accept-Encoding": encoding}) as answer:
        content = b"".join(answer.iter_raw())
    assert answer.headers.get("content-encoding", "identity") == encoding
    script = gzip.decompress(content) if encoding == "gzip" else content
    assert b"SwaggerUIBundle" in script


def test_the_documentations_script_is_decompressed_once_and_not_on_the_event_loop(client, monkeypatch):
    threads = []

    def decompress(content: bytes) -> bytes:
        threads.append(threading.current_thread())
        return zlib.decompress(content, wbits=31)

    monkeypatch.setattr(gzip, "decompress", decompress)
    docs.read_plain.cache_clear()
    for _ in range(3):
        assert client.get("/docs/swagger-ui-bundle.js", headers={"Accept-Encoding": "identity"}).is_success
    [thread] = threads
    assert thread.name != "service"  # which runs the event loop


def test_every_reference_in_the_openapi_document_leads_somewhere(client):
    document = client.get("/openapi.json").json()
    names = re.findall(r"'#/components/schemas/(\w+)'", str(document))
    assert "#/$defs" not in str(document)
    assert set(names) <= set(document["components"]["schemas"])
    assert {"ReconstructRequest", "Sweep", "Problem", "ClassifyAnswer"} <= set(names)


def test_the_openapi_document_describes_the_bodies(client):
    paths = client.get("/openapi.json").json()["paths"]
    classify = paths["/classify"]["post"]["requestBody"]["content"]
    images = classify["multipart/form-data"]["schema"]["properties"]["images"]
    assert images == {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    assert {"application/x-npy", "image/*"} <= set(classify)
    reconstruct = paths["/reconstruct"]["post"]
    assert set(reconstruct["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    assert list(reconstruct["responses"]["200"]["content"]) == ["application/json", "image/png"]


def test_no_route_promises_an_error_that_is_no_problem(client):
    for path in client.get("/openapi.json").json()["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                if not status.startswith("2"):
                    assert list(answer["content"]) == ["application/problem+json"]


def test_a_fault_of_ours_is_a_500_that_tells_no_internals(models):
    app = create_app(settings_for(models))

    @app.get("/fault")
    async def fault() -> None:
        raise RuntimeError("a secret")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/fault")

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text


def test_a_full_queue_answers_503_with_retry_after(tmp_path):
    write_slow_bundle(tmp_path / "slow" / "1")
    limits = {"queue_images": 240, "max_images_per_request": 240, "max_reconstructions": 240, "max_batch": 4}
    pixels = to_npy(np.zeros((240, SIDE, SIDE, 1), np.float32))

    def ask() -> httpx.Response:
        return client.post("/classify", content=pixels, headers={"Content-Type": "application/x-npy"})

    with live_service(settings_for(tmp_path, threads=1, **limits)) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(ask)
        wait_until(lambda: metric(client, "capsnet_queue_images") > 0)
        answer = ask()
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/overloaded")
        assert answer.headers["retry-after"].isdigit()
        assert first.result().is_success


def test_more_pictures_than_may_wait_for_their_decoding_answer_503(models):
    settings = settings_for(models, queue_images=4, max_images_per_request=4, max_reconstructions=4)
    answers: list[httpx.Response] = []

    def ask(client: httpx.Client) -> None:
        answers.extend(client.post("/classify", files=[("images", large_png())] * 3) for _ in range(5))

    with live_service(settings) as client:
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.post("/classify", files=[("images", large_png())] * 4).status_code == 200
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused, "four clients of three large pictures each fit a queue of four"
    for answer in refused:
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/overloaded")
        assert "decoded" in answer.json()["detail"]


def test_a_deadline_that_passes_while_a_model_computes_says_so(tmp_path):
    write_slow_bundle(tmp_path / "slow" / "1")

    def ask(images: int) -> httpx.Response:
        content = to_npy(np.zeros((images, SIDE, SIDE, 1), np.float32))
        return client.post("/classify", content=content, headers={"Content-Type": "application/x-npy"})

    many = 256  # in one batch, for more than five seconds
    limits = {"max_batch": many, "queue_images": 2 * many, "max_images_per_request": many}
    settings = settings_for(tmp_path, threads=1, deadline_ms=1500, **limits)
    with live_service(settings) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(ask, many)
        wait_until(lambda: metric(client, "capsnet_queue_wait_seconds_count") > 0)
        second = pool.submit(ask, 3)
        told = [one.result().json()["detail"] for one in (first, second)]
    late = "no result within 1500 ms (CAPSNET_DEADLINE_MS); "
    assert told == [f"{late}slow/1 was computing", f"{late}3 images wait for slow/1"]


def test_a_deadline_that_passes_while_a_model_is_loaded_says_so(tmp_path, monkeypatch):
    may_go_on = hold_loading(monkeypatch, "other")
    for name in ("tiny", "other"):
        write_bundle(tmp_path / name / "1")
    png = {"files": {"images": large_png()}}
    try:
        with live_service(settings_for(tmp_path, default_model="tiny", deadline_ms=300)) as client:
            for answer in (
                client.post("/classify?model=other", **png),
                client.get("/v2/models/other"),
                client.get("/v2/models/other/config"),
            ):
                assert (answer.status_code, answer.json()["type"]) == (504, "/problems/deadline-exceeded")
                assert "the model is not loaded yet, which goes on; try again" in answer.json()["detail"]
            with ThreadPoolExecutor() as pool:  # who asks for this waits for as long as it takes
                ready = pool.submit(client.get, "/v2/models/other/ready")
                with pytest.raises(TimeoutError):
                    ready.result(0.5)
                may_go_on.set()
                assert ready.result().status_code == 200
            wait_until(lambda: client.post("/classify?model=other", **png).status_code == 200)
    finally:
        may_go_on.set()


def test_decoding_is_part_of_what_the_deadline_bounds(models):
    limits = {"deadline_ms": 100, "max_request_pixels": 1_000_000_000}
    with live_service(settings_for(models, **limits, decode_threads=1)) as client:
        answer = client.post("/classify", files=[("images", large_png())] * 64)
        assert (answer.status_code, answer.json()["type"]) == (504, "/problems/deadline-exceeded")
        assert answer.headers["retry-after"].isdigit()


def test_the_pictures_of_a_request_may_have_so_many_pixels_together(models):
    limits = {"max_pixels": 9_000_000, "max_request_pixels": 26_000_000}
    with live_service(settings_for(models, **limits)) as client:
        assert client.post("/classify", files=[("images", large_png())] * 2).status_code == 200
        answer = client.post("/classify", files=[("images", large_png())] * 3)
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-many-pixels")
    assert "pixels" in answer.json()["title"]
    assert "26000000 pixels together (CAPSNET_MAX_REQUEST_PIXELS)" in answer.json()["detail"]


def test_pictures_that_have_too_many_pixels_by_their_headers_are_refused_before_any_is_decoded(models):
    limits = {"max_pixels": 9_000_000, "max_request_pixels": 26_000_000, "decode_threads": 1}
    cut_short = large_png()[:100]
    with live_service(settings_for(models, **limits)) as client:
        alone = client.post("/classify", files=[("images", cut_short)])
        assert alone.json()["type"] == "/problems/unreadable-picture"
        answer = client.post("/classify", files=[("images", cut_short), *[("images", large_png())] * 2])
    assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-many-pixels")


def test_work_ends_when_the_client_has_hung_up(models):
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def work_for_ever() -> None:
        settings, pool = settings_for(models), PicturePool(1, 100)
        gathered = Metrics()
        local = LocalModels(Repository(settings, gathered), gathered)
        service = Service(settings, local, pool, RequestMetrics(), BodyMemory(1), Keys(settings), KeyUse())
        async with service.while_wanted(Request({"type": "http"}, receive)):
            await asyncio.sleep(3600)

    with pytest.raises(ClientDisconnect):
        asyncio.run(work_for_ever())


def test_an_upload_under_way_keeps_no_version_loaded(tmp_path):
    root = tmp_path / "models"
    write_bundle(root / "lone" / "1")
    picture = large_png()
    with live_service(settings_for(root, rescan_s=0.05, versions_kept=1)) as client:
        address = (client.base_url.host, client.base_url.port)
        head = f"POST /classify HTTP/1.1\r\nHost: test\r\nContent-Length: {len(picture)}\r\n"
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the service reads the body now
            write_bundle(tmp_path / "aside" / "lone" / "2").rename(root / "lone" / "2")
            wait_until(lambda: not any("lone/1" in thread.name for thread in threading.enumerate()))
            connection.sendall(picture)
            status, answer = read_answer(connection)
            assert status == 200
            assert b'"version":2' in answer


def test_many_clients_at_once_each_get_the_picture_of_their_own_pose(client, models):
    poses = np.random.default_rng(0).uniform(-1, 1, (40, 4)).astype(np.float32)
    expected = pictures_of(poses, models / "tiny" / "1")
    for index in range(40):
        others = np.delete(expected, index, axis=0)
        assert np.abs(others - expected[index]).max(axis=1).min() > 50, "no two are alike"
    found: dict[int, np.ndarray] = {}

    def ask(index: int) -> None:
        answer = client.post("/reconstruct", json={"pose": poses[index].tolist(), "label": "1"}).json()
        with Image.open(BytesIO(b64decode(answer["reconstructions"][0]["image"]))) as picture:
            found[index] = np.asarray(picture, np.float32).ravel()

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(40):
        np.testing.assert_allclose(found[index], expected[index], rtol=0, atol=1, err_msg=str(index))


def pictures_of(poses: np.ndarray, bundle: Path) -> np.ndarray:
    """What the bundle's decoder makes of poses of class 1, [N, pixels], 0-255, without the service."""
    others = np.zeros_like(poses)
    mask = np.tile(np.float32([0, 1, 0]), (len(poses), 1))
    decoder = (bundle / "decoder.onnx").read_bytes()
    [pictures] = run_model(decoder, poses=np.stack([others, poses, others], axis=1), mask=mask)
    return 255 * pictures.reshape(len(poses), -1)


def test_a_version_published_while_running_answers(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_service(settings_for(tmp_path / "models", rescan_s=0.05)) as client:
        aside = write_bundle(tmp_path / "aside" / "tiny" / "2")
        aside.rename(tmp_path / "models" / "tiny" / "2")
        wait_until(lambda: client.post("/reconstruct", json=POSE).json()["version"] == 2)


def test_a_request_without_a_model_lists_the_names_where_there_are_several(tmp_path):
    write_bundle(tmp_path / "one" / "1")
    write_bundle(tmp_path / "two" / "1")
    with live_service(settings_for(tmp_path)) as client:
        answer = client.post("/classify", content=b64encode(b"x"))
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/model-required")
        assert "one, two" in answer.json()["detail"]
        assert "CAPSNET_DEFAULT_MODEL is 'capsnet-digits', which is not among" in answer.json()["detail"]
