"""Whatever is sent to the gRPC port, it is answered with tensors or told what is wrong."""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as oip

from tests.fuzz.fuzzed_service import ADMIN_KEY, LIMIT_S, FuzzedService
from tests.fuzz.infer_messages import INPUTS, ODD_NUMBERS, OUTPUTS, SIZES, datatype, good_values
from tests.fuzz.mutations import Draw, damaged
from tests.fuzz.sizes import examples
from tests.fuzz.test_fuzz_http import converse

PATH = "/inference.GRPCInferenceService/"
OK = grpc.StatusCode.OK
# What a client can bring about. UNAVAILABLE is counted: most calls must be answered.
HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 422,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.UNIMPLEMENTED: 405,
    grpc.StatusCode.UNAVAILABLE: 503,
}
Metadata = Sequence[tuple[str, str | bytes]]
AS_ADMIN: Metadata = (("x-api-key", ADMIN_KEY),)
ALTERABLE = ("name", "datatype", "shape", "raw", "contents", "outputs", "parameters", "bytes")
CONTENTS = {"FP32": "fp32_contents", "UINT8": "uint_contents"}
ODD_SHAPES = ([], [0], [-1], [1], [2**62] * 4, [1] * 9, [2**63 - 1, 28, 28, 1], [1, 28, 28, 1])
NAMES = ("", "tiny", "pixels", "mask", "../..", "\x00", "\u00e4" * 200)
METHODS = (
    *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig"),
    *("ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    *("ModelInfer", "ModelStreamInfer", "CudaSharedMemoryStatus", "", "a/b"),
)
ADMINISTRATION = {
    "RepositoryModelLoad": oip.RepositoryModelLoadRequest,
    "RepositoryModelUnload": oip.RepositoryModelUnloadRequest,
}
METADATA = ("x-api-key", "authorization", "x-request-id", "traceparent", "content-type", "a", "a-bin")
# A connection of HTTP/2 begins with this; the frames behind it are the client's settings and a call's head.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAMES = (
    bytes.fromhex("000000040000000000"),
    bytes.fromhex("00000c01050000000182868441076c6f63616c686f"),
    bytes.fromhex("000008060000000000") + bytes(8),
    bytes.fromhex("0000040800000000007fffffff"),
    bytes.fromhex("000005000100000001") + b"\0\0\0\0\0",
)


@pytest.fixture(scope="module")
def channel(service: FuzzedService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.process.grpc_address) as channel:
        yield channel


@st.composite
def infer_calls(draw: Draw) -> tuple[str, Any, bytes, bool]:
    """The model, a message to it, its bytes, and whether nothing was altered, so that it must be answered."""
    model = draw(st.sampled_from(sorted(INPUTS)))
    message = _message(draw, model)
    altering = draw(st.lists(st.sampled_from(ALTERABLE), max_size=2))
    for what in altering:
        _alter(draw, message, what)
    content = message.SerializeToString()
    return model, message, draw(damaged(content)) if "bytes" in altering else content, not altering


def _message(draw: Draw, model: str) -> Any:
    message = oip.ModelInferRequest(model_name=model, model_version=draw(st.sampled_from(["", "1"])))
    count, is_raw = draw(st.integers(1, 3)), draw(st.booleans())
    for name, size in INPUTS[model].items():
        values = good_values(draw, name, (count, *size))
        kind = datatype(values)
        given_input = message.inputs.add(name=name, datatype=kind, shape=values.shape)
        if is_raw:
            message.raw_input_contents.append(values.tobytes())
        else:
            getattr(given_input.contents, CONTENTS[kind]).extend(values.ravel().tolist())
    for name in draw(st.permutations(OUTPUTS[model])) if draw(st.booleans()) else ():
        message.outputs.add(name=name)
    message.id = draw(st.text(st.characters(codec="utf-8"), max_size=30))
    return message


def _alter(draw: Draw, message: Any, what: str) -> None:
    """Change one part, if it is there."""
    first = message.inputs[0]
    if what == "name":
        first.name = draw(st.sampled_from(NAMES))
    elif what == "datatype":
        first.datatype = draw(st.sampled_from(["UINT8", "BYTES", "FP64", "", "fp32"]))
    elif what == "shape":
        first.shape[:] = draw(st.sampled_from(ODD_SHAPES))
    elif what == "raw":
        message.raw_input_contents[:] = draw(st.lists(st.binary(max_size=4000), max_size=3))
    elif what == "contents":
        _odd_contents(draw, first.contents)
    elif what == "outputs":
        message.outputs.add(name=draw(st.sampled_from(NAMES)))
    elif what == "parameters":
        holder = draw(st.sampled_from([message, first, *message.outputs]))
        name = draw(st.sampled_from(["shared_memory_region", "classification", "sequence_id", ""]))
        holder.parameters[name].int64_param = draw(st.integers(-(2**63), 2**63 - 1))


def _odd_contents(draw: Draw, contents: Any) -> None:
    field = draw(st.sampled_from(["fp32_contents", "uint_contents", "bytes_contents", "bool_contents"]))
    odd = {
        "fp32_contents": list(ODD_NUMBERS),
        "uint_contents": [0, 255, 256, 2**32 - 1],
        "bytes_contents": [b"", b"x" * 1000],
        "bool_contents": [True],
    }
    getattr(contents, field).extend(odd[field] * draw(st.integers(0, 300)))


def send(
    service: FuzzedService, channel: grpc.Channel, method: str, content: bytes, metadata: Metadata = AS_ADMIN
) -> tuple[grpc.StatusCode, bytes]:
    """The code and the bytes of an answer, which has been judged; a call that hangs fails."""
    call = channel.unary_unary(PATH + method).future(content, metadata=metadata, timeout=LIMIT_S)
    if call.exception() is None:
        service.count(200)
        return OK, call.result()
    assert call.code() in HTTP_STATUS, call.details()
    assert 0 < len(call.details()) <= 1000
    assert dict(call.trailing_metadata())["problem"].startswith("/problems/")
    service.count(HTTP_STATUS[call.code()])
    return call.code(), b""


@examples(share=120, fuzz=3000)
@given(asked=infer_calls())
def test_an_infer_call_is_answered_with_sound_tensors_or_told_what_is_wrong(
    service: FuzzedService, channel: grpc.Channel, asked: tuple[str, Any, bytes, bool]
) -> None:
    model, message, content, is_good = asked
    code, answer = send(service, channel, "ModelInfer", content)
    event(code.name)
    assert code == OK or not is_good
    if is_good:
        assert_sound(model, message, oip.ModelInferResponse.FromString(answer))


def assert_sound(model: str, message: Any, answer: Any) -> None:
    """The outputs that were asked for, of the shape that belongs to the inputs, finite and in range."""
    wanted = [output.name for output in message.outputs] or list(OUTPUTS[model])
    assert (answer.id, [output.name for output in answer.outputs]) == (message.id, wanted)
    for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True):
        assert list(output.shape) == [message.inputs[0].shape[0], *SIZES[output.name]]
        values = np.frombuffer(raw, "<f4")
        assert values.size == np.prod(output.shape)
        assert np.isfinite(values).all()


@examples(share=60, fuzz=1500)
@given(method=st.sampled_from(METHODS), content=st.binary(max_size=200), model=st.sampled_from(NAMES))
def test_any_bytes_to_any_method_are_answered(
    service: FuzzedService, channel: grpc.Channel, method: str, content: bytes, model: str
) -> None:
    named = oip.ModelReadyRequest(name=model).SerializeToString()
    for sent in (content, named, named + content):
        code, _ = send(service, channel, method, sent)
        event(code.name)


@st.composite
def administration_calls(draw: Draw) -> tuple[str, bytes]:
    """The method and a message to load or unload a model; of those that are there, only `spare`."""
    method = draw(st.sampled_from(sorted(ADMINISTRATION)))
    message = ADMINISTRATION[method](model_name=draw(st.sampled_from(["spare", "", "nothing", "../.."])))
    message.repository_name = draw(st.sampled_from(NAMES))
    if draw(st.booleans()):
        name = draw(st.sampled_from(["config", "file:1/model.onnx", "unload_dependents", ""]))
        message.parameters[name].string_param = draw(st.sampled_from(["", "{}", "x" * 300]))
    return method, message.SerializeToString()


@examples(share=30, fuzz=500)
@given(asked=administration_calls())
def test_a_call_to_load_or_unload_is_answered(
    service: FuzzedService, channel: grpc.Channel, asked: tuple[str, bytes]
) -> None:
    code, _ = send(service, channel, *asked)
    event(code.name)


@st.composite
def metadata(draw: Draw) -> tuple[str, str | bytes]:
    """A key and its value, as gRPC lets clients send them."""
    key = draw(st.sampled_from(METADATA))
    if key.endswith("-bin"):
        return key, draw(st.binary(max_size=200))
    text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)
    return key, draw(text | st.sampled_from(["Bearer admin", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"]))


@examples(share=30, fuzz=1000)
@given(method=st.sampled_from(METHODS), sent=st.lists(metadata(), max_size=6))
def test_a_call_with_any_metadata_is_answered(
    service: FuzzedService, channel: grpc.Channel, method: str, sent: Metadata
) -> None:
    code, _ = send(service, channel, method, b"", sent)
    event(code.name)


@st.composite
def connections(draw: Draw) -> bytes:
    """What comes down a connection: any bytes, or frames of HTTP/2 that may be damaged."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=300))
    frames = b"".join(draw(st.lists(st.sampled_from(FRAMES), max_size=5)))
    return PREFACE + draw(damaged(frames))


@examples(share=40, fuzz=1000)
@given(sent=connections())
@example(sent=b"GET / HTTP/1.1\r\nHost: service\r\n\r\n")
@example(sent=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))  # where TLS was expected
def test_a_connection_is_closed_whatever_comes_down_it_and_others_are_answered(
    service: FuzzedService, channel: grpc.Channel, sent: bytes
) -> None:
    host, _, port = service.process.grpc_address.rpartition(":")
    converse((host, int(port)), sent)
    assert send(service, channel, "ServerLive", b"")[0] == OK
