"""Triton's statistics and model configuration extensions, over REST."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import model_config_pb2, service_pb2

from tests.support.faulty_bundle import write_slow_bundle
from tests.support.live_service import live_service, metric, settings_for, wait_until
from tests.support.small_pictures import to_npy
from tests.support.tiny_bundle import SIDE, write_bundle
from tests.support.tiny_explain import write_explained_bundle

NPY = {"Content-Type": "application/x-npy"}
LIMITS = {
    "max_batch": 4,
    "queue_images": 64,
    "max_images_per_request": 64,
    "max_reconstructions": 64,
    "threads": 1,
}


@contextmanager
def extended(models: Path) -> Iterator[httpx.Client]:
    """A service of two models; tiny is loaded, bare on first use."""
    write_explained_bundle(models / "tiny" / "1")
    write_explained_bundle(models / "tiny" / "2", seed=2)
    write_bundle(models / "bare" / "1", decoder=False)
    with live_service(settings_for(models, default_model="tiny", **LIMITS)) as http:
        wait_until(lambda: len(http.get("/v2/models/tiny/stats").json()["model_stats"]) == 2)
        yield http


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that classifies nothing and loads nothing more."""
    with extended(tmp_path_factory.mktemp("models")) as http:
        yield http


@pytest.fixture
def own(tmp_path: Path) -> Iterator[httpx.Client]:
    """A service for a test that changes its statistics or loads a model."""
    with extended(tmp_path) as http:
        yield http


def classify(http: httpx.Client, images: int) -> httpx.Response:
    array = np.random.default_rng(images).random((images, SIDE, SIDE, 1), np.float32)
    return http.post("/classify", content=to_npy(array), headers=NPY)


def statistics(http: httpx.Client, path: str = "/tiny/versions/2") -> dict[str, Any]:
    """Of one graph; no other one is in the answer."""
    answer = http.get(f"/v2/models{path}/stats")
    [found] = answer.json()["model_stats"]
    return found


def test_a_graph_that_did_nothing_has_zeros(http):
    found = statistics(http)
    assert (found["name"], found["version"]) == ("tiny", "2")
    assert (found["last_inference"], found["inference_count"], found["execution_count"]) == (0, 0, 0)
    assert all(counted == {"count": 0, "ns": 0} for counted in found["inference_stats"].values())
    assert found["batch_stats"] == []


def test_requests_of_every_route_count_once_and_in_their_batches(own):
    assert classify(own, 1).is_success
    assert classify(own, 10).is_success  # batches of 4, 4 and 2
    wait_until(lambda: statistics(own)["execution_count"] == 4)
    found = statistics(own)
    assert found["inference_count"] == 11
    assert {name: one["count"] for name, one in found["inference_stats"].items()} == {
        "success": 2,
        "fail": 0,
        "queue": 2,
        "compute_input": 2,
        "compute_infer": 2,
        "compute_output": 2,
        "cache_hit": 0,
        "cache_miss": 0,
    }
    sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in found["batch_stats"]}
    assert sizes == {1: 1, 2: 1, 4: 2}
    took = found["inference_stats"]
    assert 0 < took["compute_infer"]["ns"] < took["success"]["ns"]
    assert sum(batch["compute_infer"]["ns"] for batch in found["batch_stats"]) == pytest.approx(
        took["compute_infer"]["ns"], abs=10
    )
    assert found["last_inference"] > 1.6e12  # milliseconds since 1970


def test_a_request_that_finds_no_room_counts_as_failed(tmp_path):
    write_slow_bundle(tmp_path / "tiny" / "2")
    with live_service(settings_for(tmp_path, **LIMITS)) as http:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(classify, http, 64)
            wait_until(lambda: metric(http, "capsnet_queue_images") > 0)
            with triton.InferenceServerClient(f"127.0.0.1:{http.base_url.port}") as client:
                pixels = triton.InferInput("pixels", [64, SIDE, SIDE, 1], "FP32")
                pixels.set_data_from_numpy(np.zeros((64, SIDE, SIDE, 1), np.float32))
                with pytest.raises(triton.InferenceServerException, match="the queue holds 64"):
                    client.infer("tiny", [pixels])
            assert first.result().is_success
        assert statistics(http)["inference_stats"]["fail"]["count"] == 1


def test_a_request_that_has_waited_too_long_counts_as_failed(tmp_path):
    write_slow_bundle(tmp_path / "tiny" / "2")
    with live_service(settings_for(tmp_path, **{**LIMITS, "deadline_ms": 100})) as http:
        assert classify(http, 64).status_code == 504
        wait_until(lambda: statistics(http)["inference_stats"]["fail"]["count"] == 1)


def test_each_graph_has_statistics_of_its_own(own):
    names = [(one["name"], one["version"]) for one in own.get("/v2/models/stats").json()["model_stats"]]
    graphs = ("tiny", "tiny-decoder", "tiny-explain")
    assert sorted(names) == sorted((graph, version) for graph in graphs for version in "12")
    assert classify(own, 1).is_success
    assert statistics(own, "/tiny-decoder/versions/2")["inference_count"] == 0


def test_statistics_of_a_model_that_was_not_asked_for_are_empty_and_load_nothing(http):
    assert http.get("/v2/models/bare/stats").json() == {"model_stats": []}
    assert http.get("/models/bare").json()["versions"][0]["state"] == "available"


@pytest.mark.parametrize("path", ["/none", "/tiny/versions/7", "/tiny/versions/one", "/bare/versions/1"])
def test_statistics_of_what_is_not_there_are_404(http, path):
    answer = http.get(f"/v2/models{path}/stats")
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-model")


def test_a_graph_that_a_loaded_bundle_does_not_have_has_neither_statistics_nor_a_configuration(own):
    assert own.get("/v2/models/bare/ready").is_success  # loads it
    for answer in (own.get("/v2/models/bare-explain/stats"), own.get("/v2/models/bare-explain/config")):
        assert answer.status_code == 404
        assert answer.json()["detail"] == "there is no bare-explain: bare/1 has no explain graph"


def test_statistics_and_configuration_are_messages_of_triton(own):
    ParseDict(own.get("/v2/models/stats").json(), service_pb2.ModelStatisticsResponse())
    for model in ("tiny", "tiny-decoder", "tiny-explain", "bare"):
        ParseDict(own.get(f"/v2/models/{model}/config").json(), model_config_pb2.ModelConfig())


def test_the_configuration_says_what_the_service_does(http):
    found = http.get("/v2/models/tiny/versions/1/config").json()
    assert found["max_batch_size"] == 64
    assert found["input"] == [{"name": "pixels", "data_type": "TYPE_FP32", "dims": [SIDE, SIDE, 1]}]
    assert [tensor["name"] for tensor in found["output"]] == ["probabilities", "poses"]
    assert found["dynamic_batching"] == {"preferred_batch_size": [4]}
    assert found["instance_group"][0]["kind"] == "KIND_CPU"
    assert http.get("/v2/models/tiny-explain/config").json()["max_batch_size"] == 8
    assert http.get("/v2/models/none/config").status_code == 404


def test_tritons_client_reads_both(http):
    with triton.InferenceServerClient(f"127.0.0.1:{http.base_url.port}") as client:
        assert len(client.get_inference_statistics()["model_stats"]) == 6
        assert client.get_inference_statistics("tiny", "2")["model_stats"][0]["version"] == "2"
        assert client.get_model_config("tiny-decoder")["name"] == "tiny-decoder"
