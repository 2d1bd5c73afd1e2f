"""The Open Inference Protocol over gRPC, with Triton's own client and over a real socket."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from pydantic import SecretStr
from tritonclient.grpc import service_pb2 as oip
from tritonclient.utils import InferenceServerException

from service.oip import grpc_arrival
from service.oip.grpc_server import GrpcPort
from service.oip.grpc_start import keep_port
from service.settings import Settings
from tests.support.faulty_bundle import write_slow_bundle
from tests.support.live_service import live_service, metric, settings_for, wait_until
from tests.support.slow_loading import hold_loading
from tests.support.tiny_bundle import SIDE, run_model, write_bundle
from tests.support.tiny_explain import write_explained_bundle

PATH = "/inference.GRPCInferenceService/"
QUEUE = 240
LIMITS = {
    "max_batch": 8,
    "queue_images": QUEUE,
    "max_images_per_request": QUEUE,
    "max_reconstructions": QUEUE,
    "max_body_bytes": 2**20,
}
Code = grpc.StatusCode

# N images, J classes


class Live:
    """A running service: Triton's client of its gRPC port, a client of its HTTP port, and a bare channel."""

    def __init__(self, http: httpx.Client, address: str, client: triton.InferenceServerClient) -> None:
        self.http = http
        self.address = address
        self.client = client
        self.channel = grpc.insecure_channel(address, [("grpc.max_send_message_length", -1)])

    def call(self, method: str, message: Any, metadata: dict[str, str] | None = None) -> grpc.Call:
        """An RPC under way; messages may be bytes of any kind."""
        content = message if isinstance(message, bytes) else message.SerializeToString()
        return self.channel.unary_unary(PATH + method).future(
            content, metadata=list((metadata or {}).items()), timeout=60
        )

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.http, name, **labels)


@contextmanager
def live(settings: Settings) -> Iterator[Live]:
    with keep_port(settings.host, settings.grpc_port) as kept:
        settings = settings.model_copy(update={"grpc_port": kept.getsockname()[1]})
        with (
            live_service(settings, beside=GrpcPort(settings).open, ready=False) as http,
            triton.InferenceServerClient(settings.grpc_address) as client,
        ):
            if settings.models and any(Path(settings.models).iterdir()):
                wait_until(lambda: http.get("/readyz").is_success)
            service = Live(http, settings.grpc_address, client)
            with service.channel:
                yield service


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_explained_bundle(root / "tiny" / "1", seed=4)
    write_bundle(root / "bare" / "1", decoder=False)
    return root


@pytest.fixture(scope="module")
def service(models: Path) -> Iterator[Live]:
    with live(settings_for(models, default_model="tiny", grpc_port=0, **LIMITS)) as service:
        yield service


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Live]:
    """One slow model with one inference thread."""
    write_slow_bundle(tmp_path / "slow" / "1")
    with live(settings_for(tmp_path, grpc_port=0, threads=1, **LIMITS)) as service:
        yield service


def pixels(count: int = 2) -> np.ndarray:
    return np.random.default_rng(count).random((count, SIDE, SIDE, 1), np.float32)


def an_input(array: np.ndarray, name: str = "pixels") -> triton.InferInput:
    given = triton.InferInput(name, list(array.shape), "UINT8" if array.dtype == np.uint8 else "FP32")
    return given.set_data_from_numpy(array)


def asking(array: np.ndarray | None = None, model: str = "tiny", **fields: Any) -> Any:
    """A good message, with raw values."""
    array = pixels() if array is None else array
    message = oip.ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="pixels", datatype="FP32", shape=array.shape)
    message.raw_input_contents.append(array.tobytes())
    return message


def with_parameters(count: int) -> bytes:
    """A message of a few KiB whose one input has many empty parameters."""
    of_input = b"".join(b"\x22\x05\x0a\x03%03x" % number for number in range(count))
    return oip.ModelInferRequest(model_name="tiny").SerializeToString() + in_field(5, of_input)


def with_texts(count: int) -> bytes:
    """The same with many empty texts as its values."""
    of_input = in_field(5, in_field(8, b"") * count)
    return oip.ModelInferRequest(model_name="tiny").SerializeToString() + in_field(5, of_input)


def in_field(number: int, value: bytes) -> bytes:
    """A field of protobuf whose value is text or a message."""
    size = len(value)
    varint = b""
    while size > 127:
        varint += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + varint + bytes([size]) + value


def refusal(call: grpc.Call) -> tuple[Code, str]:
    """The code and text with which a call ends."""
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    return caught.value.code(), caught.value.details()


# -- health and metadata -------------------------------------------------------------------------------------


def test_server_and_models_are_live_and_ready(service):
    assert service.client.is_server_live()
    assert service.client.is_server_ready()
    assert service.client.is_model_ready("tiny", "1")
    assert service.client.is_model_ready("bare")  # it loads on first use


def test_without_a_model_the_server_is_live_and_not_ready(tmp_path):
    with live(settings_for(tmp_path, grpc_port=0)) as service:
        assert service.client.is_server_live()
        assert not service.client.is_server_ready()
        assert not service.client.is_model_ready("tiny")


@pytest.mark.parametrize("model", ["none", "bare-decoder"])
def test_a_model_that_there_is_not_is_not_ready(service, model):
    assert service.client.is_model_ready("bare")
    assert not service.client.is_model_ready(model)


@pytest.mark.parametrize("model", ["tiny", "tiny-decoder", "tiny-explain", "bare"])
def test_metadata_and_configuration_are_those_of_the_rest_routes(service, model):
    for found, path in (
        (service.client.get_model_metadata(model, as_json=True), f"/v2/models/{model}"),
        (service.client.get_model_config(model, as_json=True)["config"], f"/v2/models/{model}/config"),
    ):
        told = service.http.get(path).json()
        assert numbers_as_texts(found) == numbers_as_texts(told)
    assert service.client.get_model_config(model).config.name == model


def test_the_server_lists_the_extensions_that_it_has(service):
    metadata = service.client.get_server_metadata()
    assert metadata.name == "capsnet"
    assert list(metadata.extensions) == ["classification", "model_configuration", "statistics"]


def test_a_version_without_a_name_asks_for_the_statistics_of_all(service):
    found = oip.ModelStatisticsRequest(version="7")
    answer = oip.ModelStatisticsResponse.FromString(service.call("ModelStatistics", found).result())
    assert len(answer.model_stats) == len(service.client.get_inference_statistics("").model_stats)


def test_statistics_are_those_of_the_rest_route(service):
    service.client.infer("tiny", [an_input(pixels())])
    for name, path in (("tiny", "/tiny/stats"), ("", "/stats")):
        found = service.client.get_inference_statistics(name)
        told = service.http.get(f"/v2/models{path}").json()["model_stats"]
        assert [one.name for one in found.model_stats] == [one["name"] for one in told]
        assert [one.inference_count for one in found.model_stats] == [one["inference_count"] for one in told]
    assert refusal(service.call("ModelStatistics", oip.ModelStatisticsRequest(name="tiny", version="7"))) == (
        Code.NOT_FOUND,
        service.http.get("/v2/models/tiny/versions/7/stats").json()["detail"],
    )


def numbers_as_texts(value: Any) -> Any:
    """protobuf writes 64-bit integers as text into JSON."""
    if isinstance(value, dict):
        return {name: numbers_as_texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [numbers_as_texts(one) for one in value]
    return str(value)


# -- inference -----------------------------------------------------------------------------------------------


def test_answers_are_the_graphs(service, models):
    result = service.client.infer("tiny", [an_input(pixels(3))], request_id="mine")
    content = (models / "tiny" / "1" / "encoder.onnx").read_bytes()
    for name, expected in zip(("probabilities", "poses"), run_model(content, pixels=pixels(3)), strict=True):
        assert np.allclose(result.as_numpy(name), expected, atol=1e-6)
    answer = result.get_response()
    assert (answer.model_name, answer.model_version, answer.id) == ("tiny", "1", "mine")
    assert (
        answer.parameters["digest"].string_param
        == service.http.get("/models/tiny").json()["versions"][0]["digest"]
    )


def test_pixels_of_8_bits_are_those_of_a_picture(service):
    levels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 1), np.uint8)
    found, expected = (
        service.client.infer("tiny", [an_input(array)]).as_numpy("poses")
        for array in (levels, levels.astype(np.float32) / np.float32(255))
    )
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("datatype", ["FP32", "UINT8"])
def test_typed_values_are_answered_as_raw_ones(service, datatype):
    levels = np.random.default_rng(0).integers(0, 256, (40, SIDE, SIDE, 1), np.uint8)
    array = levels if datatype == "UINT8" else levels.astype(np.float32) / np.float32(255)
    message = oip.ModelInferRequest(model_name="tiny")
    given = message.inputs.add(name="pixels", datatype=datatype, shape=array.shape)
    field = given.contents.uint_contents if datatype == "UINT8" else given.contents.fp32_contents
    field.extend(array.ravel().tolist())
    answer = oip.ModelInferResponse.FromString(service.call("ModelInfer", message).result())
    expected = service.client.infer("tiny", [an_input(array)]).as_numpy("probabilities")
    assert np.array_equal(np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(40, -1), expected)


def test_decoder_and_explain_graph_answer_to_names_of_their_own(service):
    poses = service.client.infer("tiny", [an_input(pixels())]).as_numpy("poses")
    mask = np.eye(3, dtype=np.float32)[:2]
    inputs = [an_input(poses, "poses"), an_input(mask, "mask")]
    assert service.client.infer("tiny-decoder", inputs).as_numpy("reconstruction").shape == (2, SIDE, SIDE, 1)
    couplings = service.client.infer("tiny-explain", [an_input(pixels())]).as_numpy("couplings")
    assert np.allclose(couplings.sum(axis=2), 1, atol=1e-5)


def test_the_best_classes_come_as_text(service):
    wanted = [triton.InferRequestedOutput("probabilities", class_count=2)]
    result = service.client.infer("tiny", [an_input(pixels())], outputs=wanted)
    texts = result.as_numpy("probabilities")
    expected = service.client.infer("tiny", [an_input(pixels())]).as_numpy("probabilities")
    assert texts.shape == (2, 2)
    assert [int(text.split(b":")[1]) for text in texts[:, 0]] == expected.argmax(axis=1).tolist()
    assert result.as_numpy("poses") is None  # was not asked for


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_messages_may_be_compressed(service, coding):
    plain, packed = (
        service.client.infer("tiny", [an_input(pixels())], compression_algorithm=used).as_numpy("poses")
        for used in (None, coding)
    )
    assert np.array_equal(plain, packed)


def test_calls_at_the_same_time_share_runs(slow):
    calls = [slow.call("ModelInfer", asking(pixels(1), model="slow")) for _ in range(20)]
    assert all(call.result() for call in calls)
    wait_until(lambda: statistics_of(slow).inference_count == 20)
    assert statistics_of(slow).execution_count < 20


def statistics_of(service: Live, model: str = "slow") -> Any:
    return service.client.get_inference_statistics(model).model_stats[0]


# -- what is wrong -------------------------------------------------------------------------------------------


def altered(alter: Callable[[Any], object]) -> Any:
    message = asking()
    alter(message)
    return message


def set_shape(message: Any, *shape: int) -> None:
    message.inputs[0].shape[:] = shape


def set_values(message: Any, value: float) -> None:
    message.raw_input_contents[0] = np.full((2, SIDE, SIDE, 1), value, np.float32).tobytes()


def share_memory(tensors: Any) -> None:
    tensors[0].parameters["shared_memory_region"].string_param = "region"


def ask_for(message: Any, *names: str, classes: int | None = None) -> None:
    for name in names:
        output = message.outputs.add(name=name)
        if classes is not None:
            output.parameters["classification"].int64_param = classes


WRONG = {
    "no inputs": (lambda m: m.ClearField("inputs"), "one or more tensors"),
    "no values": (lambda m: m.ClearField("raw_input_contents"), "takes 1568 values in fp32_contents"),
    "too few entries": (lambda m: m.inputs.add(name="mask"), "one entry for each of the 2 inputs"),
    "too many entries": (lambda m: m.raw_input_contents.append(b""), "one entry for each of the 1 inputs"),
    "twice": (lambda m: (m.inputs.append(m.inputs[0]), m.raw_input_contents.append(b"")), "'pixels' twice"),
    "both forms": (lambda m: m.inputs[0].contents.fp32_contents.append(1), "both contents and raw"),
    "another name": (lambda m: setattr(m.inputs[0], "name", "pixel"), "tiny takes the inputs pixels"),
    "datatype": (lambda m: setattr(m.inputs[0], "datatype", "FP64"), "datatype must be FP32 or UINT8"),
    "bytes": (lambda m: setattr(m.inputs[0], "datatype", "BYTES"), "datatype must be FP32 or UINT8"),
    "no shape": (lambda m: set_shape(m), "takes 4 bytes"),
    "negative": (lambda m: set_shape(m, -1, 28, 28, 1), "sizes of at least 1"),
    "zero": (lambda m: set_shape(m, 0, 28, 28, 1), "sizes of at least 1"),
    "huge": (lambda m: set_shape(m, 2**62, 2**62, 2**62), "takes 392318858461667547739736838950479151006397"),
    "many axes": (lambda m: set_shape(m, *[1] * 1000), "up to 8 sizes"),
    "transposed": (lambda m: set_shape(m, 28, 28, 2, 1), r"expected \[N, 28, 28, 1\]"),
    "short": (lambda m: m.raw_input_contents.__setitem__(0, b"\0" * 6271), "takes 6272 bytes"),
    "range": (lambda m: set_values(m, 2), "within 0 to 1, got 2 to 2"),
    "nan": (lambda m: set_values(m, np.nan), "within 0 to 1, got nan"),
    "input in shared memory": (lambda m: share_memory(m.inputs), "shared memory is not supported"),
    "output in shared memory": (lambda m: (ask_for(m, "poses"), share_memory(m.outputs)), "shared memory"),
    "unknown output": (lambda m: ask_for(m, "pose"), "tiny gives probabilities, poses"),
    "output twice": (lambda m: ask_for(m, "poses", "poses"), "lists a name twice"),
    "classes of poses": (lambda m: ask_for(m, "poses", classes=1), "available for probabilities"),
    "negative classes": (lambda m: ask_for(m, "probabilities", classes=-1), "how many classes"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_request_is_told_what_was_expected(service, what):
    alter, text = WRONG[what]
    code, told = refusal(service.call("ModelInfer", altered(alter)))
    assert code == Code.INVALID_ARGUMENT
    assert re.search(text, told), told


@pytest.mark.parametrize(
    ("name", "version"), [("none", ""), ("tiny", "7"), ("tiny", "one"), ("bare-decoder", ""), ("\u00e9", "")]
)
def test_an_unknown_model_is_told_what_http_tells(service, name, version):
    code, told = refusal(service.call("ModelInfer", asking(model=name, model_version=version)))
    assert code == Code.NOT_FOUND
    path = f"/v2/models/{name}" + (f"/versions/{version}" if version else "")
    assert told == service.http.get(path).json()["detail"]


def test_levels_above_255_are_refused(service):
    message = oip.ModelInferRequest(model_name="tiny")
    given = message.inputs.add(name="pixels", datatype="UINT8", shape=[1, SIDE, SIDE, 1])
    given.contents.uint_contents.extend([256] * SIDE**2)
    code, told = refusal(service.call("ModelInfer", message))
    assert (code, "from 0 to 255, got 256" in told) == (Code.INVALID_ARGUMENT, True)


def test_too_many_images_are_refused(service):
    code, told = refusal(service.call("ModelInfer", asking(pixels(QUEUE + 1))))
    assert (code, "CAPSNET_QUEUE_IMAGES" in told) == (Code.RESOURCE_EXHAUSTED, True)


def test_a_message_over_the_limit_of_bodies_is_refused_and_others_are_answered(service):
    before = service.metric("capsnet_requests_total", route=f"{PATH}ModelInfer", status="499")
    code, told = refusal(service.call("ModelInfer", asking(pixels(400))))
    assert (code, "larger than max" in told) == (Code.RESOURCE_EXHAUSTED, True)
    assert service.client.infer("tiny", [an_input(pixels())]).as_numpy("poses") is not None
    wait_until(
        lambda: service.metric("capsnet_requests_total", route=f"{PATH}ModelInfer", status="499") > before
    )


def test_a_compressed_message_does_not_grow_over_the_limit(service):
    message = asking(np.zeros((100, SIDE, SIDE, 100), np.float32)).SerializeToString()
    call = service.channel.unary_unary(PATH + "ModelInfer").future(message, compression=grpc.Compression.Gzip)
    assert refusal(call)[0] == Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (b"\xff" * 100, Code.INVALID_ARGUMENT, "has no end"),
        (b"\x0a\x05tiny", Code.INVALID_ARGUMENT, "is cut off"),
        (b"\x0b\x0c", Code.INVALID_ARGUMENT, "no wire type 3"),
        (b"\x0a\x01\xff", Code.INVALID_ARGUMENT, "no ModelInferRequest"),
        (b"\x2a\x00" * 2000, Code.RESOURCE_EXHAUSTED, "may list 1024 tensors"),
        (with_parameters(2000), Code.RESOURCE_EXHAUSTED, "may list 1024 tensors"),
        (with_texts(2000), Code.RESOURCE_EXHAUSTED, "may list 1024 tensors"),
    ],
)
def test_bytes_that_are_no_request_are_told_so(service, content, code, text):
    found, told = refusal(service.call("ModelInfer", content))
    assert (found, text in told) == (code, True), told


def test_a_message_of_small_values_does_not_grow_in_memory(models):
    with live(settings_for(models, default_model="tiny", grpc_port=0)) as service:
        message = oip.ModelInferRequest(model_name="tiny")
        message.inputs.add(name="pixels").shape.extend([1] * (5 * 2**20))
        code, told = refusal(service.call("ModelInfer", message))
        assert (code, "beside raw_input_contents" in told) == (Code.RESOURCE_EXHAUSTED, True)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("ModelStreamInfer", "send each request to ModelInfer"),
        ("SystemSharedMemoryRegister", "shared memory is not supported"),
        ("CudaSharedMemoryStatus", "shared memory is not supported"),
        ("LogSettings", "no method LogSettings"),
        ("Nonsense", "no method Nonsense"),
    ],
)
def test_a_method_that_there_is_not_is_unimplemented(service, method, text):
    code, told = refusal(service.call(method, b""))
    assert (code, text in told) == (Code.UNIMPLEMENTED, True), told


def test_a_call_without_a_message_is_answered(service):
    call = service.channel.stream_unary(PATH + "ServerMetadata").future(iter(()))
    assert refusal(call) == (Code.INVALID_ARGUMENT, "the call ended without a message")


# -- limits --------------------------------------------------------------------------------------------------


def test_a_cancelled_call_leaves_the_queue(slow):
    calls = [slow.call("ModelInfer", asking(pixels(QUEUE // 2), model="slow")) for _ in range(2)]
    wait_until(lambda: slow.metric("capsnet_queue_images") > 20)
    for call in calls:
        call.cancel()
    wait_until(lambda: slow.metric("capsnet_requests_total", route=f"{PATH}ModelInfer", status="499") == 2)
    wait_until(lambda: slow.metric("capsnet_queue_images") == 0)
    assert statistics_of(slow).inference_count == 0
    assert slow.metric("capsnet_batch_images_sum") < QUEUE


def test_a_call_past_its_own_deadline_leaves_the_queue(slow):
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        slow.client.infer("slow", [an_input(pixels(QUEUE))], client_timeout=0.2)
    wait_until(lambda: slow.metric("capsnet_queue_images") == 0)
    assert slow.metric("capsnet_batch_images_sum") < QUEUE


def test_a_full_queue_is_unavailable_and_says_when_to_try_again(slow):
    first = slow.call("ModelInfer", asking(pixels(QUEUE), model="slow"))
    wait_until(lambda: slow.metric("capsnet_queue_images") > 0)
    second = slow.call("ModelInfer", asking(pixels(QUEUE), model="slow"))
    code, told = refusal(second)
    assert (code, f"the queue holds {QUEUE}" in told) == (Code.UNAVAILABLE, True)
    trailers = dict(second.trailing_metadata())
    assert (trailers["problem"], trailers["retry-after"]) == ("/problems/overloaded", "1")
    assert first.result()


def test_what_takes_longer_than_the_deadline_is_told_the_setting(tmp_path):
    write_slow_bundle(tmp_path / "slow" / "1")
    with live(settings_for(tmp_path, grpc_port=0, threads=1, deadline_ms=100, **LIMITS)) as service:
        code, told = refusal(service.call("ModelInfer", asking(pixels(QUEUE), model="slow")))
        assert (code, "within 100 ms" in told) == (Code.DEADLINE_EXCEEDED, True)


def test_a_deadline_that_passes_while_a_model_is_loaded_says_so(tmp_path, monkeypatch):
    may_go_on = hold_loading(monkeypatch, "other")
    for name in ("tiny", "other"):
        write_bundle(tmp_path / name / "1")
    settings = settings_for(tmp_path, default_model="tiny", grpc_port=0, deadline_ms=300)
    with live(settings) as service:
        try:
            refusals = [
                refusal(service.call("ModelInfer", asking(pixels(1), model="other"))),
                refusal(service.call("ModelMetadata", oip.ModelMetadataRequest(name="other"))),
                refusal(service.call("ModelConfig", oip.ModelConfigRequest(name="other"))),
            ]
        finally:
            may_go_on.set()  # else the service's end waits for the thread that loads
    for code, told in refusals:
        assert (code, "the model is not loaded yet" in told) == (Code.DEADLINE_EXCEEDED, True)


def test_a_message_that_does_not_come_is_given_up(models):
    with live(settings_for(models, default_model="tiny", grpc_port=0, receive_ms=200)) as service:
        with never_sent(service) as call:
            code, told = refusal(call)
        assert (code, "CAPSNET_RECEIVE_MS" in told) == (Code.DEADLINE_EXCEEDED, True)


def test_messages_that_do_not_come_make_way_for_others(models, monkeypatch):
    monkeypatch.setattr(grpc_arrival, "GIVES_WAY_S", 0.1)
    few = {"uploads_bytes": 2 * 2**20, "max_body_bytes": 2**20}
    settings = settings_for(models, default_model="tiny", grpc_port=0, **few)
    with live(settings) as service, never_sent(service) as first, never_sent(service) as second:
        while not (first.done() or second.done()):  # one of them, once both are at work
            assert service.client.infer("tiny", [an_input(pixels())]).as_numpy("poses") is not None
        gone, there = (first, second) if first.done() else (second, first)
        code, told = refusal(gone)
        assert (code, "others wait" in told) == (Code.UNAVAILABLE, True)
        there.cancel()


def test_many_calls_that_send_nothing_delay_another_client_by_one_turn(models, monkeypatch):
    """First come, first served would let them all have theirs before."""
    monkeypatch.setattr(grpc_arrival, "GIVES_WAY_S", 1.0)
    few = {"uploads_bytes": 2 * 2**20, "max_body_bytes": 2**20, "receive_ms": 60_000}
    settings = settings_for(models, default_model="tiny", grpc_port=0, **few)
    with live(settings) as service, ExitStack() as stalled:
        calls = [stalled.enter_context(never_sent(service)) for _ in range(12)]
        wait_until(lambda: sum(call.done() for call in calls) == 2)  # turns are two, and ten wait
        with grpc.insecure_channel(service.address) as other:
            ask = other.unary_unary(PATH + "ModelInfer")
            ask(asking().SerializeToString(), timeout=60)
        assert sum(call.done() for call in calls) <= 6
        for call in calls:
            call.cancel()


def waiting_for_a_turn(service: Live) -> Any:
    """A call that is not answered, as others have all turns."""
    while True:
        call = service.call("ModelInfer", asking())
        try:
            call.result(timeout=0.5)
        except grpc.FutureTimeoutError:
            return call


def test_a_probe_needs_no_turn(models, monkeypatch):
    monkeypatch.setattr(grpc_arrival, "GIVES_WAY_S", 60.0)
    few = {"uploads_bytes": 2 * 2**20, "max_body_bytes": 2**20, "receive_ms": 60_000}
    settings = settings_for(models, default_model="tiny", grpc_port=0, **few)
    with live(settings) as service, never_sent(service) as first, never_sent(service) as second:
        third = waiting_for_a_turn(service)
        assert service.client.is_server_live()
        assert service.client.is_server_ready()
        for call in (first, second, third):
            assert not call.done()
            call.cancel()


@contextmanager
def never_sent(service: Live) -> Iterator[grpc.Call]:
    """A call whose message does not come."""
    over = threading.Event()

    def messages() -> Iterator[bytes]:
        over.wait()
        yield from ()

    call = service.channel.stream_unary(PATH + "ModelInfer").future(messages())
    try:
        yield call
    finally:
        over.set()


# -- keys and administration ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(models: Path) -> Iterator[Live]:
    keys = {"api_keys": SecretStr("client-key"), "admin_key": SecretStr("admin-key")}
    with live(settings_for(models, default_model="tiny", grpc_port=0, **keys)) as service:
        yield service


@pytest.mark.parametrize("metadata", [{"authorization": "Bearer client-key"}, {"x-api-key": "client-key"}])
def test_a_key_comes_in_the_metadata(keyed, metadata):
    assert keyed.call("ModelInfer", asking(), metadata).result()
    assert keyed.client.get_model_metadata("tiny", headers=metadata).name == "tiny"


def test_without_a_valid_key_only_health_is_told(keyed):
    assert keyed.client.is_server_live()
    assert keyed.client.is_server_ready()
    for metadata, came in (({}, "none came"), ({"x-api-key": "other"}, "is not valid")):
        code, told = refusal(keyed.call("ModelInfer", asking(), metadata))
        assert (code, came in told) == (Code.UNAUTHENTICATED, True)
        assert refusal(keyed.call("ModelConfig", b"", metadata))[0] == Code.UNAUTHENTICATED


def test_the_key_is_checked_before_the_message_is_read(keyed):
    with never_sent(keyed) as call:
        assert refusal(call)[0] == Code.UNAUTHENTICATED


def test_a_key_has_its_limits_here_too(models, tmp_path, caplog):
    keys = tmp_path / "keys"
    keys.write_text("lab:lab-key rate=0.01\n")
    settings = settings_for(models, default_model="tiny", grpc_port=0, api_keys_file=keys)
    with live(settings) as service:
        metadata = {"x-api-key": "lab-key"}
        assert service.call("ModelInfer", asking(), metadata).result()
        call = service.call("ModelInfer", asking(), metadata)
        assert refusal(call)[0] == Code.RESOURCE_EXHAUSTED
        told = dict(call.trailing_metadata())
        assert told["problem"] == "/problems/too-many-requests"
        assert 90 <= int(told["retry-after"]) <= 100
        assert service.client.is_server_live(headers=metadata)
        wait_until(lambda: any("'key': 'lab'" in str(record.args) for record in caplog.records))


def test_models_are_listed_loaded_and_unloaded_with_the_admin_key(keyed):
    admin = {"x-api-key": "admin-key"}
    listed = keyed.client.get_model_repository_index(headers=admin).models
    assert {(one.name, one.version) for one in listed} == {("tiny", "1"), ("bare", "1")}
    keyed.client.load_model("bare", headers=admin)
    assert states(keyed) == {"tiny": "READY", "bare": "READY"}
    keyed.client.unload_model("bare", headers=admin)
    assert states(keyed) == {"tiny": "READY", "bare": "UNAVAILABLE"}
    with pytest.raises(InferenceServerException, match="taken down by an operator"):
        keyed.client.get_model_metadata("bare", headers=admin)
    with pytest.raises(InferenceServerException, match="served as it was published"):
        keyed.client.load_model("bare", headers=admin, config="{}")
    with pytest.raises(InferenceServerException, match="no model 'none'"):
        keyed.client.load_model("none", headers=admin)


def states(service: Live) -> dict[str, str]:
    listed = service.client.get_model_repository_index(headers={"x-api-key": "admin-key"}).models
    return {one.name: one.state for one in listed}


@pytest.mark.parametrize("method", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_administration_needs_the_admin_key(keyed, service, method):
    code, told = refusal(keyed.call(method, b"", {"x-api-key": "client-key"}))
    assert (code, "CAPSNET_ADMIN_KEY" in told) == (Code.PERMISSION_DENIED, True)
    assert refusal(service.call(method, b""))[0] == Code.NOT_FOUND


# -- logs and metrics ----------------------------------------------------------------------------------------


def test_every_call_is_counted_and_logged_with_its_id(service, caplog):
    labels = {"route": f"{PATH}ModelInfer", "status": "200"}
    before = service.metric("capsnet_requests_total", **labels)
    call = service.call("ModelInfer", asking(), {"x-request-id": "mine-1"})
    call.result()
    assert dict(call.trailing_metadata())["x-request-id"] == "mine-1"
    wait_until(lambda: service.metric("capsnet_requests_total", **labels) == before + 1)
    wait_until(lambda: any("mine-1" in str(record.args) for record in caplog.records))
    (line,) = [record.args for record in caplog.records if "mine-1" in str(record.args)]
    assert line["path"] == f"{PATH}ModelInfer"
    assert (line["method"], line["status"], line["model"], line["images"]) == ("gRPC", 200, "tiny/1", 2)
    assert (line["client"], line["bytes_in"] > 6000, line["bytes_out"] > 0) == ("127.0.0.1", True, True)


def test_a_refused_call_is_logged_with_its_problem_and_a_made_up_method_counts_as_other(service, caplog):
    call = service.call("Made/Up", b"", {"x-request-id": "two words"})
    refusal(call)
    new_id = dict(call.trailing_metadata())["x-request-id"]
    assert new_id.isalnum()
    wait_until(lambda: service.metric("capsnet_requests_total", route="other", status="405") >= 1)
    assert service.metric("capsnet_problems_total", type="/problems/method-not-allowed") >= 1
    wait_until(lambda: any(new_id in str(record.args) for record in caplog.records))
    (line,) = [record.args for record in caplog.records if new_id in str(record.args)]
    assert (line["status"], line["problem"]) == (405, "/problems/method-not-allowed")
    assert line["path"] == f"{PATH}Made/Up"


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Check", "/" + 50_000 * "x"])
def test_the_log_has_the_path_that_was_called_but_not_all_of_a_long_one(service, path, caplog):
    call = service.channel.unary_unary(path).future(b"")
    refusal(call)
    new_id = dict(call.trailing_metadata())["x-request-id"]
    wait_until(lambda: any(new_id in str(record.args) for record in caplog.records))
    (line,) = [record.args for record in caplog.records if new_id in str(record.args)]
    assert line["path"] == (path if len(path) < 200 else f"{path[:200]}...")


def test_a_fault_of_ours_is_internal_and_tells_nothing(service, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("service.oip.grpc_methods.check_request", broken)
    assert refusal(service.call("ModelInfer", asking())) == (
        Code.INTERNAL,
        "something went wrong on our side; the log has the details",
    )
    assert any(record.exc_info for record in caplog.records)


def test_many_calls_of_one_connection_are_answered(service):
    async def all_at_once() -> list[bytes]:
        async with grpc.aio.insecure_channel(service.address) as channel:
            infer = channel.unary_unary(PATH + "ModelInfer")
            content = asking(pixels(1)).SerializeToString()
            return await asyncio.gather(*(infer(content) for _ in range(50)))

    assert len(asyncio.run(all_at_once())) == 50
