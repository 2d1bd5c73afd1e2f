import asyncio
import gzip
import json
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

from capsnet.wire_format import HEADER_LENGTH, read_response, write_request
from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.raw_http import connected
from tests.support.tiny_bundle import CLASSES, SIDE, rewrite_manifest, run_model, write_bundle
from tests.support.tiny_explain import write_explained_bundle

MAX_BATCH, QUEUE = 8, 64
LIMITS = {
    "max_batch": MAX_BATCH,
    "queue_images": QUEUE,
    "max_images_per_request": QUEUE,
    "max_reconstructions": QUEUE,
    "max_body_bytes": 2**20,
}
ADMIN = {"X-API-Key": "operator"}

# N images, J classes


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles: tiny of two versions is the default; bare has no decoder, and only shown an explain graph.

    late-decoder is no decoder of late.
    """
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1", seed=1)
    write_bundle(root / "tiny" / "2", seed=2)
    write_bundle(root / "bare" / "1", decoder=False)
    write_bundle(root / "late-decoder" / "1", seed=3)
    write_explained_bundle(root / "shown" / "1", seed=4)
    return root


@pytest.fixture(scope="module")
def http(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models, default_model="tiny", **LIMITS)) as http:
        wait_until(lambda: has_loaded_all_of("tiny", http))
        yield http


@pytest.fixture(scope="module")
def client(http: httpx.Client) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address(http)) as client:
        yield client


def address(http: httpx.Client) -> str:
    return f"{http.base_url.host}:{http.base_url.port}"


def has_loaded_all_of(model: str, http: httpx.Client) -> bool:
    """A service is ready with the newest version; the ones before may still be loading."""
    answer = http.get(f"/models/{model}")
    return answer.is_success and all(v["state"] == "loaded" for v in answer.json()["versions"])


def pixels(count: int = 2) -> np.ndarray:
    return np.random.default_rng(count).random((count, SIDE, SIDE, 1), np.float32)


def graph_outputs(models: Path, count: int = 2, *, version: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and poses that the graph itself gives for the pixels."""
    content = (models / "tiny" / str(version) / "encoder.onnx").read_bytes()
    probabilities, poses = run_model(content, pixels=pixels(count))
    return probabilities, poses


def an_input(name: str, array: np.ndarray, *, binary: bool = True) -> triton.InferInput:
    given = triton.InferInput(name, list(array.shape), "UINT8" if array.dtype == np.uint8 else "FP32")
    return given.set_data_from_numpy(array, binary_data=binary)


def post(http: httpx.Client, body: bytes, model: str = "tiny", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(f"/v2/models/{model}/infer", content=body, headers=named)


def json_request(array: np.ndarray, **fields: Any) -> bytes:
    given = {"name": "pixels", "shape": list(array.shape), "datatype": "FP32", "data": array.tolist()}
    return json.dumps({"inputs": [given], **fields}).encode()


# -- health and metadata ----------------------------------------------------------------------------------


def test_the_server_is_live_and_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()


def test_the_server_is_live_but_not_ready_without_a_model(tmp_path: Path) -> None:
    with (
        live_service(settings_for(tmp_path), ready=False) as http,
        triton.InferenceServerClient(address(http)) as client,
    ):
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("tiny")
        assert http.get("/v2/health/ready").headers["retry-after"]


def test_the_server_lists_the_extensions_that_it_has(client: triton.InferenceServerClient) -> None:
    metadata = client.get_server_metadata()
    assert metadata["name"] == "capsnet"
    assert metadata["extensions"] == [
        "binary_tensor_data",
        "classification",
        "model_configuration",
        "statistics",
    ]


def test_the_encoder_answers_to_the_models_name(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("tiny")
    assert metadata["name"] == "tiny"
    assert sorted(metadata["versions"]) == ["1", "2"]
    assert metadata["inputs"] == [{"name": "pixels", "datatype": "FP32", "shape": [-1, SIDE, SIDE, 1]}]
    assert metadata["outputs"] == [
        {"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "poses", "datatype": "FP32", "shape": [-1, 3, 4]},
    ]


def test_the_decoder_answers_to_a_name_of_its_own(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("tiny-decoder", "1")
    assert metadata["name"] == "tiny-decoder"
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["poses", "mask"]
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["reconstruction"]


def test_the_explain_graph_answers_to_a_name_of_its_own(
    client: triton.InferenceServerClient, models: Path
) -> None:
    metadata = client.get_model_metadata("shown-explain")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["pixels"]
    shapes = {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]}
    assert shapes["couplings"] == shapes["agreements"] == [-1, 2, 3, 2, 6, 6]
    result = client.infer("shown-explain", [an_input("pixels", pixels(3))])
    assert {name: [-1, *result.as_numpy(name).shape[1:]] for name in shapes} == shapes
    content = (models / "shown" / "1" / "encoder.onnx").read_bytes()
    for name, expected in zip(("probabilities", "poses"), run_model(content, pixels=pixels(3)), strict=True):
        np.testing.assert_allclose(result.as_numpy(name), expected, atol=1e-6)
    np.testing.assert_allclose(result.as_numpy("couplings").sum(axis=2), 1, atol=1e-5)


def test_the_explain_graph_takes_few_images_at_once(client: triton.InferenceServerClient) -> None:
    client.infer("shown-explain", [an_input("pixels", pixels(8))])
    with pytest.raises(InferenceServerException, match="shown-explain may have 8 images, got 9") as raised:
        client.infer("shown-explain", [an_input("pixels", pixels(9))])
    assert raised.value.status() == "413"


def test_a_bundle_that_is_called_decoder_keeps_its_name(client: triton.InferenceServerClient) -> None:
    assert [tensor["name"] for tensor in client.get_model_metadata("late-decoder")["inputs"]] == ["pixels"]
    metadata = client.get_model_metadata("late-decoder-decoder")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["poses", "mask"]


@pytest.mark.parametrize(
    ("model", "version", "is_ready"),
    [
        ("tiny", "", True),
        ("tiny", "1", True),
        ("tiny-decoder", "2", True),
        ("bare", "", True),  # it loads on first use
        ("bare-decoder", "", False),
        ("shown-explain", "", True),
        ("bare-explain", "", False),
        ("tiny", "3", False),
        ("tiny", "0", False),
        ("tiny", "one", False),
        ("tiny", "9" * 30, False),
        ("none", "", False),
    ],
)
def test_a_model_is_ready_when_it_will_answer(
    client: triton.InferenceServerClient, model: str, version: str, is_ready: bool
) -> None:
    assert client.is_model_ready(model, version) == is_ready


# -- inference --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_answers_are_the_graphs_in_either_form(
    client: triton.InferenceServerClient, models: Path, binary_in: bool, binary_out: bool | None
) -> None:
    names = ["probabilities", "poses"]
    asked = None if binary_out is None else [triton.InferRequestedOutput(name, binary_out) for name in names]
    result = client.infer("tiny", [an_input("pixels", pixels(), binary=binary_in)], outputs=asked)
    for name, expected in zip(names, graph_outputs(models), strict=True):
        assert np.allclose(result.as_numpy(name), expected, atol=1e-6)


@pytest.mark.parametrize("binary", [True, False])
def test_pixels_of_8_bits_are_those_of_a_picture(client: triton.InferenceServerClient, binary: bool) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 1), np.uint8)
    found, expected = (
        client.infer("tiny", [an_input("pixels", array, binary=binary)]).as_numpy("poses")
        for array in (levels, levels.astype(np.float32) / np.float32(255))
    )
    assert np.array_equal(found, expected)


def test_the_decoder_decodes(client: triton.InferenceServerClient, models: Path) -> None:
    _, poses = graph_outputs(models)
    mask = np.eye(3, dtype=np.float32)[[0, 2]]
    result = client.infer("tiny-decoder", [an_input("mask", mask), an_input("poses", poses, binary=False)])
    content = (models / "tiny" / "2" / "decoder.onnx").read_bytes()
    (expected,) = run_model(content, poses=poses, mask=mask)
    assert np.allclose(result.as_numpy("reconstruction"), expected, atol=1e-6)


def test_a_version_can_be_chosen(client: triton.InferenceServerClient, models: Path) -> None:
    result = client.infer("tiny", [an_input("pixels", pixels())], model_version="1")
    assert result.get_response()["model_version"] == "1"
    assert np.allclose(result.as_numpy("poses"), graph_outputs(models, version=1)[1], atol=1e-6)


def test_only_the_outputs_asked_for_come_and_in_that_order(client: triton.InferenceServerClient) -> None:
    one = client.infer("tiny", [an_input("pixels", pixels())], outputs=[triton.InferRequestedOutput("poses")])
    assert [output["name"] for output in one.get_response()["outputs"]] == ["poses"]
    names = ["poses", "probabilities"]
    both = client.infer(
        "tiny",
        [an_input("pixels", pixels())],
        outputs=[triton.InferRequestedOutput(name, name == "poses") for name in names],
    )
    assert [output["name"] for output in both.get_response()["outputs"]] == names
    assert both.as_numpy("poses").shape == (2, 3, 4)
    assert both.as_numpy("probabilities").shape == (2, 3)


def test_a_request_id_comes_back(client: triton.InferenceServerClient) -> None:
    result = client.infer("tiny", [an_input("pixels", pixels())], request_id="my-id")
    assert result.get_response()["id"] == "my-id"
    assert "id" not in client.infer("tiny", [an_input("pixels", pixels())]).get_response()


def test_unknown_parameters_are_ignored(client: triton.InferenceServerClient) -> None:
    asked = client.infer(
        "tiny", [an_input("pixels", pixels())], priority=1, timeout=10**6, parameters={"mood": "good"}
    )
    assert asked.as_numpy("poses").shape == (2, 3, 4)


def test_a_request_larger_than_a_batch_is_answered_whole(
    client: triton.InferenceServerClient, models: Path
) -> None:
    count = 3 * MAX_BATCH + 1
    result = client.infer("tiny", [an_input("pixels", pixels(count))])
    assert np.allclose(result.as_numpy("poses"), graph_outputs(models, count)[1], atol=1e-6)


@pytest.mark.parametrize("binary", [True, False])
def test_classification_gives_the_best_classes_with_labels(
    client: triton.InferenceServerClient, models: Path, binary: bool
) -> None:
    asked = [triton.InferRequestedOutput("probabilities", binary, class_count=2)]
    texts = client.infer("tiny", [an_input("pixels", pixels(5))], outputs=asked).as_numpy("probabilities")
    assert texts.shape == (5, 2)
    for row, probabilities in zip(texts, graph_outputs(models, 5)[0], strict=True):
        best = np.argsort(-probabilities)[:2]
        parts = [(text.decode() if binary else text).split(":") for text in row]
        assert [int(index) for _, index, _ in parts] == best.tolist()
        assert [label for _, _, label in parts] == [CLASSES[index] for index in best]
        assert np.allclose([float(score) for score, _, _ in parts], probabilities[best], atol=1e-5)


def test_classification_gives_every_class_at_most(client: triton.InferenceServerClient) -> None:
    asked = [triton.InferRequestedOutput("probabilities", class_count=100)]
    texts = client.infer("tiny", [an_input("pixels", pixels())], outputs=asked).as_numpy("probabilities")
    assert texts.shape == (2, 3)


@pytest.mark.parametrize("request_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_coding", [None, "gzip", "deflate"])
def test_both_ways_can_be_compressed(
    client: triton.InferenceServerClient,
    models: Path,
    request_coding: str | None,
    response_coding: str | None,
) -> None:
    result = client.infer(
        "tiny",
        [an_input("pixels", pixels())],
        request_compression_algorithm=request_coding,
        response_compression_algorithm=response_coding,
    )
    assert np.allclose(result.as_numpy("poses"), graph_outputs(models)[1], atol=1e-6)


def test_answers_are_compressed_when_asked_and_not_when_a_library_offers_it(http: httpx.Client) -> None:
    body = json_request(pixels())
    assert post(http, body, accept_encoding="gzip").headers["content-encoding"] == "gzip"
    assert "content-encoding" not in post(http, body, accept_encoding="gzip, deflate, br").headers


def test_many_requests_at_once_are_answered_each_with_its_own(http: httpx.Client, models: Path) -> None:
    async def ask() -> list[np.ndarray]:
        async with aio.InferenceServerClient(address(http)) as client:
            asked = [
                client.infer("tiny", [an_input("pixels", pixels(count))], request_id=str(count))
                for count in range(1, 9)
            ]
            return [result.as_numpy("poses") for result in await asyncio.gather(*asked)]

    for count, poses in enumerate(asyncio.run(ask()), start=1):
        assert np.allclose(poses, graph_outputs(models, count)[1], atol=1e-6)


def test_the_asynchronous_client_sees_metadata_compression_and_errors(http: httpx.Client) -> None:
    async def ask() -> None:
        async with aio.InferenceServerClient(address(http)) as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("tiny"))["name"] == "tiny"
            result = await client.infer(
                "tiny",
                [an_input("pixels", pixels())],
                request_compression_algorithm="deflate",
                response_compression_algorithm="gzip",
            )
            assert result.as_numpy("poses").shape == (2, 3, 4)
            with pytest.raises(InferenceServerException, match="no model 'none'"):
                await client.infer("none", [an_input("pixels", pixels())])

    asyncio.run(ask())


# -- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([("pixels", pixels()[:, :14])], r"shape \[2, 14, 28, 1\]; expected \[N, 28, 28, 1\]"),
        ([("pixels", pixels()[0])], r"shape \[28, 28, 1\]; expected \[N, 28, 28, 1\]"),
        ([("image", pixels())], r"takes the inputs pixels; got 'image'"),
        ([("pixels", pixels()), ("more", pixels())], r"takes the inputs pixels; got 'pixels', 'more'"),
        ([("pixels", pixels() * 255)], r"within 0 to 1, got"),
        ([("pixels", pixels() - 1)], r"within 0 to 1, got"),
        ([("pixels", pixels() * np.float32(np.nan))], r"within 0 to 1, got nan"),
        ([("pixels", pixels() * np.float32(np.inf))], r"within 0 to 1, got inf to inf"),
        ([("pixels", pixels(QUEUE + 1))], r"may have 64 images \(CAPSNET_QUEUE_IMAGES\), got 65"),
        ([("pixels", pixels() * 255)], r"send 0 to 255 as UINT8"),
        ([("pixels", np.zeros((2, 28, 28, 2), np.uint8))], r"shape \[2, 28, 28, 2\]; expected"),
        ([("pixels", pixels()[:0])], r"sizes of at least 1, got \[0, 28, 28, 1\]"),
        ([("pixels", pixels()), ("pixels", pixels())], r"lists 'pixels' twice"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_what_was_expected(
    client: triton.InferenceServerClient, inputs: list[tuple[str, np.ndarray]], message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message) as raised:
        client.infer("tiny", [an_input(name, np.ascontiguousarray(array)) for name, array in inputs])
    assert raised.value.status()[0] == "4"


def test_poses_are_no_integers(client: triton.InferenceServerClient) -> None:
    poses, mask = np.zeros((2, 3, 4), np.uint8), np.zeros((2, 3), np.float32)
    with pytest.raises(InferenceServerException, match="input poses must be FP32, got UINT8") as raised:
        client.infer("tiny-decoder", [an_input("poses", poses), an_input("mask", mask)])
    assert raised.value.status()[0] == "4"


def test_inputs_of_different_batches_are_refused(client: triton.InferenceServerClient) -> None:
    poses, mask = np.zeros((2, 3, 4), np.float32), np.zeros((3, 3), np.float32)
    with pytest.raises(InferenceServerException, match="same batch axis") as raised:
        client.infer("tiny-decoder", [an_input("poses", poses), an_input("mask", mask)])
    assert raised.value.status() == "422"


@pytest.mark.parametrize("pose", [np.nan, -np.inf, 1e7])
def test_poses_are_finite_and_of_a_size_that_poses_have(
    client: triton.InferenceServerClient, pose: float
) -> None:
    poses, mask = np.full((1, 3, 4), pose, np.float32), np.ones((1, 3), np.float32)
    with pytest.raises(InferenceServerException, match="input poses must be within"):
        client.infer("tiny-decoder", [an_input("poses", poses), an_input("mask", mask)])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([("logits", 0)], "tiny gives probabilities, poses; got 'logits'"),
        ([("poses", 0), ("poses", 0)], "lists a name twice: poses, poses"),
        ([("poses", 2)], "classification is available for probabilities, not for poses"),
    ],
)
def test_outputs_that_there_are_not_are_refused(
    client: triton.InferenceServerClient, outputs: list[tuple[str, int]], message: str
) -> None:
    asked = [triton.InferRequestedOutput(name, class_count=classes) for name, classes in outputs]
    with pytest.raises(InferenceServerException, match=message) as raised:
        client.infer("tiny", [an_input("pixels", pixels())], outputs=asked)
    assert raised.value.status() == "422"


@pytest.mark.parametrize(
    ("model", "version", "message"),
    [
        ("none", "", "no model 'none'"),
        ("none-decoder", "", "no model 'none'"),
        ("bare-decoder", "", "bare/1 has no decoder"),
        ("bare-explain", "", "bare/1 has no explain graph"),
        ("tiny", "7", "no loaded version 7"),
        ("tiny", "newest", "positive integers, got 'newest'"),
    ],
)
def test_a_model_that_there_is_not_is_a_404(
    client: triton.InferenceServerClient, model: str, version: str, message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message) as raised:
        client.infer(model, [an_input("pixels", pixels())], model_version=version)
    assert raised.value.status() == "404"


def test_an_error_is_a_problem_and_the_protocols_error_in_one(http: httpx.Client) -> None:
    answer = post(http, b"{}")
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == "/problems/malformed-body"
    assert (
        problem["error"]
        == problem["detail"]
        == "inputs must be a list of one or more tensor objects, got none"
    )


def test_what_is_no_part_of_the_protocol_here_is_a_404_that_the_client_understands(
    client: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match="there is nothing at '/v2/models/tiny/trace/setting'"):
        client.get_trace_settings("tiny")


def test_another_method_is_a_405_that_names_the_right_one(http: httpx.Client) -> None:
    answer = http.get("/v2/models/tiny/infer")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert "error" in answer.json()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_not_unpacked(http: httpx.Client, coding: str) -> None:
    pack = gzip.compress if coding == "gzip" else zlib.compress
    answer = post(http, pack(bytes(2**26)), content_encoding=coding)
    assert answer.status_code == 413
    assert "CAPSNET_MAX_BODY_BYTES" in answer.json()["error"]


def test_what_a_body_unpacks_to_counts_as_held(models: Path) -> None:
    mib = 2**20
    body = json_request(pixels())
    padded = gzip.compress(body + b" " * 2 * mib)
    limits = {"max_body_bytes": 3 * mib, "uploads_bytes": 4 * mib, "receive_ms": 600_000}
    with live_service(settings_for(models, **limits)) as client:
        with connected(client) as stalled:
            stalled.sendall(
                b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (2 * mib + 1)
                + bytes(2 * mib)
            )
            wait_until(lambda: post(client, padded, content_encoding="gzip").status_code == 503)
            assert post(client, body).status_code == 200
        wait_until(lambda: post(client, padded, content_encoding="gzip").status_code == 200)
        assert [post(client, padded, content_encoding="gzip").status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [
        (json_request(pixels()), "gzip", 400),
        (gzip.compress(json_request(pixels()))[:-9], "gzip", 400),
        (gzip.compress(json_request(pixels())) + b"more", "gzip", 400),
        (zlib.compress(b""), "deflate", 400),
        (json_request(pixels()), "br", 415),
        (json_request(pixels()), "gzip, gzip", 415),
        (b"", "identity", 400),
    ],
)
def test_bodies_that_do_not_unpack_are_refused(
    http: httpx.Client, body: bytes, coding: str, status: int
) -> None:
    answer = post(http, body, content_encoding=coding)
    assert answer.status_code == status
    assert answer.json()["error"]


@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(at=st.integers(0, 300), damage=st.binary(min_size=1, max_size=6), length=st.integers(-1, 400))
def test_damaged_binary_requests_are_answered_or_refused(
    http: httpx.Client, at: int, damage: bytes, length: int
) -> None:
    message = write_request({"pixels": pixels(1)})
    body = message.body[:at] + damage + message.body[at + len(damage) :]
    lengths = {str(message.header_length), str(length)}
    for header_length in lengths:
        answer = post(http, body, **{HEADER_LENGTH: header_length})
        assert answer.status_code in {200, 400, 422}
        if answer.status_code == 200:
            _, outputs = read_response(answer.content, answer.headers.get(HEADER_LENGTH))
            assert outputs["poses"].shape == (1, 3, 4)
        else:
            assert answer.json()["error"]


def test_an_unknown_coding_is_refused_with_those_there_are(http: httpx.Client) -> None:
    answer = post(http, json_request(pixels()), content_encoding="br")
    assert answer.headers["accept-encoding"] == "gzip, deflate"
    assert answer.json()["error"] == "Content-Encoding must be gzip or deflate, got 'br'"


def test_a_missing_key_reaches_the_client_as_its_error(models: Path) -> None:
    with (
        live_service(settings_for(models, default_model="tiny", api_keys="visitor")) as http,
        triton.InferenceServerClient(address(http)) as client,
    ):
        assert client.is_server_live()
        with pytest.raises(InferenceServerException, match="API key required"):
            client.infer("tiny", [an_input("pixels", pixels())])
        key = {"Authorization": "Bearer visitor"}
        result = client.infer("tiny", [an_input("pixels", pixels())], headers=key)
        assert result.as_numpy("poses").shape == (2, 3, 4)


# -- the repository extension -----------------------------------------------------------------------------


def copy_two(models: Path, folder: Path) -> Path:
    """A folder with tiny/1, which is the default, and bare/1."""
    for version in ("tiny/1", "bare/1"):
        shutil.copytree(models / version, folder / version)
    return folder


@contextmanager
def administered(models: Path) -> Iterator[httpx.Client]:
    with live_service(settings_for(models, default_model="tiny", admin_key="operator")) as http:
        wait_until(lambda: has_loaded_all_of("tiny", http))
        yield http


@pytest.fixture(scope="module")
def operated_http(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that can be administered, for tests that change nothing."""
    with administered(copy_two(models, tmp_path_factory.mktemp("operated"))) as http:
        yield http


@pytest.fixture(scope="module")
def operated(operated_http: httpx.Client) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address(operated_http)) as client:
        yield client


@pytest.fixture
def own_models(models: Path, tmp_path: Path) -> Path:
    return copy_two(models, tmp_path)


@pytest.fixture
def own(own_models: Path) -> Iterator[triton.InferenceServerClient]:
    """Of a service on `own_models`, for a test that changes what is loaded."""
    with administered(own_models) as http, triton.InferenceServerClient(address(http)) as client:
        yield client


def states(client: triton.InferenceServerClient) -> dict[str, str]:
    """`{"tiny/1": "READY"}`."""
    index = client.get_model_repository_index(headers=ADMIN)
    return {f"{entry['name']}/{entry['version']}": entry["state"] for entry in index}


def test_the_index_lists_every_version_and_its_state(operated: triton.InferenceServerClient) -> None:
    assert states(operated) == {"bare/1": "UNAVAILABLE", "tiny/1": "READY"}


def test_the_index_lists_what_is_ready_where_it_is_asked_to(operated_http: httpx.Client) -> None:
    answer = operated_http.post("/v2/repository/index", content=b'{"ready": true}', headers=ADMIN)
    assert answer.json() == [{"name": "tiny", "version": "1", "state": "READY", "reason": ""}]


def test_the_index_says_why_a_version_is_not_served(models: Path, tmp_path: Path) -> None:
    for version in ("1", "2"):
        shutil.copytree(models / "tiny" / "1", tmp_path / "tiny" / version)
    with live_service(settings_for(tmp_path, versions_kept=1, admin_key="operator")) as http:
        newest, oldest = http.post("/v2/repository/index", headers=ADMIN).json()
        assert newest["state"] == "READY"
        assert oldest["state"] == "UNAVAILABLE"
        assert "CAPSNET_VERSIONS_KEPT=1" in oldest["reason"]
        assert http.get("/v2/models/tiny").json()["versions"] == ["2"]


def test_the_extension_is_listed_where_it_is_on(operated: triton.InferenceServerClient) -> None:
    assert "model_repository" in operated.get_server_metadata()["extensions"]


def test_loading_makes_a_model_ready(own: triton.InferenceServerClient) -> None:
    own.load_model("bare", headers=ADMIN)
    assert states(own)["bare/1"] == "READY"


def test_loading_again_takes_what_is_newest_on_disk(
    own: triton.InferenceServerClient, own_models: Path, models: Path
) -> None:
    shutil.copytree(models / "tiny" / "2", own_models / "tiny" / "2")
    own.load_model("tiny", headers=ADMIN)
    assert states(own)["tiny/2"] == "READY"
    result = own.infer("tiny", [an_input("pixels", pixels())])
    assert result.get_response()["model_version"] == "2"


def test_an_unloaded_model_is_gone_until_it_is_loaded(own: triton.InferenceServerClient) -> None:
    own.unload_model("tiny", headers=ADMIN)
    assert states(own)["tiny/1"] == "UNAVAILABLE"
    assert not own.is_model_ready("tiny")
    with pytest.raises(InferenceServerException, match="taken down by an operator"):
        own.infer("tiny-decoder", [an_input("pixels", pixels())])
    own.load_model("tiny", headers=ADMIN)
    assert own.is_model_ready("tiny")


def test_a_model_that_cannot_be_loaded_says_why(
    own: triton.InferenceServerClient, own_models: Path, models: Path
) -> None:
    shutil.copytree(models / "tiny" / "2", own_models / "broken" / "1")
    rewrite_manifest(own_models / "broken" / "1", model="broken", class_names=("a", "b"))
    with pytest.raises(InferenceServerException) as raised:
        own.load_model("broken", headers=ADMIN)
    assert raised.value.status() == "422"
    assert states(own)["broken/1"] == "UNAVAILABLE"


@pytest.mark.parametrize("ask", ["load_model", "unload_model"])
def test_an_unknown_model_is_neither_loaded_nor_unloaded(
    operated: triton.InferenceServerClient, ask: str
) -> None:
    with pytest.raises(InferenceServerException, match="no model 'none'") as raised:
        getattr(operated, ask)("none", headers=ADMIN)
    assert raised.value.status() == "404"


def test_a_bundle_is_loaded_as_it_was_published(operated: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="as it was published; got 'config'"):
        operated.load_model("tiny", headers=ADMIN, config="{}")


def test_administration_takes_the_admin_key(operated: triton.InferenceServerClient) -> None:
    asks = [
        operated.get_model_repository_index,
        lambda: operated.load_model("tiny"),
        lambda: operated.unload_model("tiny", headers={"X-API-Key": "visitor"}),
    ]
    for ask in asks:
        with pytest.raises(InferenceServerException, match="CAPSNET_ADMIN_KEY") as raised:
            ask()
        assert raised.value.status() == "403"
    assert operated.is_model_ready("tiny")


def test_administration_is_off_without_an_admin_key(client: triton.InferenceServerClient) -> None:
    for ask in (client.get_model_repository_index, lambda: client.unload_model("tiny", headers=ADMIN)):
        with pytest.raises(InferenceServerException, match="administration is off") as raised:
            ask()
        assert raised.value.status() == "404"
    assert client.is_model_ready("tiny")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("index", b"[]"),
        ("index", b'{"ready": 1}'),
        ("index", b"{"),
        ("models/tiny/load", b'{"parameters": 1}'),
        ("models/tiny/load", b'{"parameters": false}'),
        ("models/tiny/load", b"\x0b\t"),
        ("models/tiny/unload", b'{"parameters": "unload_dependents"}'),
    ],
)
def test_administration_refuses_bodies_that_are_not_the_protocols(
    operated_http: httpx.Client, path: str, body: bytes
) -> None:
    answer = operated_http.post(f"/v2/repository/{path}", content=body, headers=ADMIN)
    assert answer.status_code in {400, 422}
    assert answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "index"),
        ("POST", "models/tiny/load"),
        ("POST", "models/tiny/unload"),
        ("PUT", "models/tiny/traffic"),
    ],
)
def test_administration_refuses_compressed_bodies_as_such(
    operated_http: httpx.Client, method: str, path: str
) -> None:
    headers = {**ADMIN, "Content-Encoding": "gzip"}
    body = gzip.compress(b"{}")
    answer = operated_http.request(method, f"/v2/repository/{path}", content=body, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-coding")
    assert answer.headers["accept-encoding"] == "identity"
