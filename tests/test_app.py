"""The application around the two routes: readiness, what is loaded, documentation, overload."""

import asyncio
import gzip
import re
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from live_service import live_service, settings_for, wait_until
from tiny_bundle import write_bundle

from service import errors
from service.app import create_app

POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    broken = write_bundle(root / "tiny" / "2")
    (broken / "samples.npz").write_bytes(b"")
    return root


@pytest.fixture(scope="module")
def client(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models)) as client:
        yield client


def test_ready_says_what_is_loaded_and_on_which_device(client):
    assert client.get("/readyz").json() == {"status": "ready", "device": "cpu", "models": ["tiny/1"]}


def test_alive_is_alive(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.head("/healthz").status_code == client.head("/readyz").status_code == 200


def test_a_service_without_models_is_alive_but_not_ready_and_says_why(tmp_path):
    with live_service(settings_for(tmp_path / "nothing"), ready=False) as client:
        wait_until(lambda: "nothing" in client.get("/readyz").json()["detail"])
        assert client.get("/healthz").status_code == 200
        for answer in (client.get("/readyz"), client.post("/classify", content=b"x")):
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/not-ready")
            assert answer.headers["retry-after"].isdigit()


def test_models_lists_what_is_loaded_and_what_is_refused_and_why(client):
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
    }


def test_a_model_is_shown_with_its_manifest(client):
    versions = client.get("/models/tiny").json()["versions"]
    manifest = next(version["manifest"] for version in versions if version["state"] == "loaded")
    assert manifest["class_names"] == ["0", "1", "2"]
    assert manifest["preprocessing"]["placement"] == "digit"


def test_the_bare_address_leads_to_the_documentation(client):
    answer = client.get("/", follow_redirects=True)
    assert answer.url.path == "/docs"
    assert answer.status_code == 200


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
    assert images == {"type": "array", "items": {"type": "string", "format": "binary"}}
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


def test_every_type_of_problem_is_in_the_table():
    for error in errors.ServiceError.__subclasses__():
        row = next(line for line in errors.__doc__.splitlines() if line.startswith(f"| {error.status}"))
        assert error.slug in row


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


def test_a_full_queue_answers_503_with_retry_after(models):
    settings = settings_for(
        models, queue_images=4, max_images_per_request=4, max_reconstructions=4, max_batch=1
    )
    sweep = {"dimensions": [0], "start": 0.0, "stop": 0.3, "step": 0.1}
    answers: list[httpx.Response] = []

    def ask(client: httpx.Client) -> None:
        answers.extend(client.post("/reconstruct", json={**POSE, "sweep": sweep}) for _ in range(10))

    with live_service(settings) as client:
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused, "eight clients of four pictures each fit a queue of four"
    for answer in refused:
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/overloaded")
        assert answer.headers["retry-after"].isdigit()


def test_many_clients_at_once_each_get_their_own_answer(client):
    poses = [[0.01 * index, 0.2, -0.1, 0.3] for index in range(40)]
    answers: dict[int, list[float]] = {}

    def ask(index: int) -> None:
        body = {"pose": poses[index], "label": "1"}
        answers[index] = client.post("/reconstruct", json=body).json()["reconstructions"][0]["pose"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, pose in enumerate(poses):
        np.testing.assert_array_equal(np.float32(answers[index]), np.float32(pose))


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
        wait_until(lambda: len(client.get("/readyz").json()["models"]) == 2)
        answer = client.post("/classify", content=b64encode(b"x"))
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/model-required")
        assert "one, two" in answer.json()["detail"]
