import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from capsnet.wire_format import (
    MAX_JSON_NAMES,
    MAX_JSON_VALUES,
    InferRequest,
    RequestedOutput,
    WireError,
    read_request,
    read_response,
    split,
    write_message,
    write_request,
)

quick = settings(suppress_health_check=[HealthCheck.too_slow])

shapes = array_shapes(max_dims=4, max_side=5)
tensors = st.dictionaries(
    st.text(max_size=8),
    shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=st.floats(width=32))),
    min_size=1,
    max_size=3,
)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def pixels(count: int = 2) -> np.ndarray:
    return np.random.default_rng(0).random((count, 3, 2, 1), np.float32)


def body_of(*inputs: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def tensor(**changes: Any) -> dict[str, Any]:
    """A valid input with these changes; None takes a field away."""
    given = {"name": "x", "shape": [2], "datatype": "FP32", "data": [0.5, 1], **changes}
    return {name: value for name, value in given.items() if value is not None}


@quick
@given(tensors)
def test_binary_requests_come_back_bit_by_bit(inputs: dict[str, np.ndarray]) -> None:
    message = write_request(inputs)
    read = read_request(message.body, str(message.header_length))
    assert read.binary
    assert list(read.inputs) == list(inputs)
    for name, array in inputs.items():
        assert read.inputs[name].shape == array.shape
        assert read.inputs[name].tobytes() == array.tobytes()


@quick
@given(shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=finite)))
def test_json_answers_come_back_bit_by_bit(array: np.ndarray) -> None:
    message = write_message({"model_name": "m"}, "outputs", {"y": array}, binary=set())
    assert message.header_length is None
    header, outputs = read_response(message.body, None)
    assert header["model_name"] == "m"
    read = outputs["y"]
    assert read.tobytes() == array.tobytes()
    assert read.shape == array.shape


@quick
@given(st.binary(max_size=200), st.none() | st.text(max_size=6) | st.integers(-2, 210).map(str))
def test_arbitrary_bytes_raise_nothing_but_our_error(body: bytes, header_length: str | None) -> None:
    with pytest.raises(WireError):
        read_request(body, header_length)


@quick
@given(json_values)
def test_arbitrary_json_raises_nothing_but_our_error(value: Any) -> None:
    with pytest.raises(WireError):
        read_request(json.dumps(value).encode("utf-8", "surrogatepass"), None)


@quick
@given(
    st.sampled_from(["name", "shape", "datatype", "data", "parameters"]),
    json_values | st.lists(st.integers(-(2**70), 2**70), max_size=12) | st.lists(st.floats(), max_size=3),
)
def test_a_tensor_with_one_wrong_field_is_read_or_refused(field: str, value: Any) -> None:
    body = json.dumps({"inputs": [{**tensor(), field: value}]}).encode("utf-8", "surrogatepass")
    try:
        (array,) = read_request(body, None).inputs.values()
    except WireError:
        return
    assert array.dtype == np.float32
    assert list(array.shape) == (value if field == "shape" else [2])


@quick
@given(st.integers(0, 200), st.binary(max_size=4))
def test_a_damaged_binary_request_is_read_or_refused(at: int, damage: bytes) -> None:
    message = write_request({"pixels": pixels()})
    body = message.body[:at] + damage + message.body[at + len(damage) :]
    try:
        inputs = read_request(body, str(message.header_length)).inputs
    except WireError:
        return
    assert all(array.nbytes == 48 for array in inputs.values())


def test_flat_and_nested_data_are_the_same() -> None:
    nested = tensor(shape=[2, 2], data=[[1, 2], [3, 4]])
    flat = tensor(shape=[2, 2], data=[1, 2, 3, 4])
    (first,) = read_request(body_of(nested), None).inputs.values()
    (second,) = read_request(body_of(flat), None).inputs.values()
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 2], [[1, 2], [3]]),
        ([2, 2], [[1, 2, 3, 4]]),
        ([2, 2], [[1, 2], 3]),
        ([4], [[1], [2], [3], [4]]),
        ([2, 1], [[[1]], [[2]]]),
        ([2], [1, 2, 3]),
        ([2], []),
        ([2], 5),
        ([2], {"0": 1, "1": 2}),
    ],
)
def test_data_of_another_shape_is_refused(shape: list[int], data: Any) -> None:
    with pytest.raises(WireError, match=r"data|values"):
        read_request(body_of(tensor(shape=shape, data=data)), None)


@pytest.mark.parametrize("value", ["0.5", True, None, {}])
def test_only_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(WireError, match="must hold numbers"):
        read_request(body_of(tensor(data=[0.5, value])), None)


def test_numbers_beyond_float32_become_infinite() -> None:
    (array,) = read_request(body_of(tensor(data=[1e300, -1e300])), None).inputs.values()
    assert array.tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    "shape", [[-1], [0], [2.0], [True, 2], "2", [2**63, 2**63], [1] * 9, [[2]], [0, 2**63], [2**70], 2, None]
)
def test_a_shape_is_a_short_list_of_sizes(shape: Any) -> None:
    with pytest.raises(WireError, match="shape"):
        read_request(body_of(tensor(shape=shape)), None)


def test_a_refusal_repeats_little_of_a_shape() -> None:
    with pytest.raises(WireError, match="-1") as raised:
        read_request(body_of(tensor(shape=["x" * 5000, -1, [1] * 5000])), None)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("datatype", ["FP16", "INT8", "uint8", None, ["FP32"]])
def test_other_datatypes_are_refused_by_name(datatype: Any) -> None:
    with pytest.raises(WireError, match="datatype must be FP32 or UINT8, got "):
        read_request(body_of(tensor(datatype=datatype)), None)


def test_integers_are_read_from_json_and_from_bytes() -> None:
    listed = read_request(body_of(tensor(datatype="UINT8", data=[0, 255])), None).inputs["x"]
    header = body_of(tensor(datatype="UINT8", data=None, parameters={"binary_data_size": 2}))
    packed = read_request(header + bytes([0, 255]), str(len(header))).inputs["x"]
    for found in (listed, packed):
        assert found.dtype == np.uint8
        assert found.tolist() == [0, 255]


@pytest.mark.parametrize("data", [[0, 256], [-1, 0], [0, 0.5], [0.0, 1.0], [0, 2**70]])
def test_integers_are_of_8_bits(data: list[Any]) -> None:
    with pytest.raises(WireError, match="integers from 0 to 255"):
        read_request(body_of(tensor(datatype="UINT8", data=data)), None)


def test_integers_take_a_byte_each() -> None:
    header = body_of(tensor(datatype="UINT8", data=None, parameters={"binary_data_size": 8}))
    with pytest.raises(WireError, match="UINT8 takes 2 bytes, binary_data_size is 8"):
        read_request(header + bytes(8), str(len(header)))


def test_an_answer_has_no_integers() -> None:
    answer = orjson.dumps({"outputs": [tensor(datatype="UINT8", data=[0, 1])]})
    with pytest.raises(WireError, match="datatype must be FP32, got 'UINT8'"):
        read_response(answer, None)


@pytest.mark.parametrize("size", [-8, 4, 9, 2**63, 8.0, True, "8"])
def test_a_binary_size_must_be_that_of_the_shape(size: Any) -> None:
    header = body_of(tensor(data=None, parameters={"binary_data_size": size}))
    with pytest.raises(WireError, match="binary_data_size"):
        read_request(header + bytes(8), str(len(header)))


@pytest.mark.parametrize("came", [0, 7, 9, 16])
def test_binary_sizes_must_add_up_to_what_came(came: int) -> None:
    header = body_of(tensor(data=None, parameters={"binary_data_size": 8}))
    with pytest.raises(WireError, match=r"8 bytes behind the JSON|bytes are left"):
        read_request(header + bytes(came), str(len(header)))


def test_values_come_from_one_place() -> None:
    header = body_of(tensor(parameters={"binary_data_size": 8}))
    with pytest.raises(WireError, match="both"):
        read_request(header + bytes(8), str(len(header)))


def test_a_name_may_stand_once() -> None:
    with pytest.raises(WireError, match="'x' twice"):
        read_request(body_of(tensor(), tensor()), None)


def test_of_a_name_that_an_object_has_twice_the_last_counts() -> None:
    text = body_of(tensor()).replace(b"{", b'{"inputs": [], ', 1)
    assert list(read_request(text, None).inputs) == ["x"]


@pytest.mark.parametrize("length", ["", "+5", "-1", "5.0", " 5", "1_0", "٣", "5, 5", "9" * 13, "100000"])
def test_a_header_length_is_a_count_of_bytes_of_the_body(length: str) -> None:
    with pytest.raises(WireError, match="Inference-Header-Content-Length"):
        read_request(body_of(tensor()), length)


@pytest.mark.parametrize("odd", [0, 1, 2, 3])
def test_values_behind_a_header_of_any_length_are_aligned_for_kernels(odd: int) -> None:
    header = body_of(tensor(data=None, parameters={"binary_data_size": 8}))
    header += b" " * (-len(header) % 4 + odd)
    read = read_request(header + np.float32([1, 2]).tobytes(), str(len(header)))
    assert read.inputs["x"].flags.aligned
    assert read.inputs["x"].flags.c_contiguous
    assert read.inputs["x"].tolist() == [1, 2]


def nested(depth: int, times: int) -> bytes:
    """So many lists in lists, with commas between every `depth` alone."""
    return b",".join([b"[" * depth + b"]" * depth] * times)


def test_our_own_binary_messages_are_read_without_a_copy() -> None:
    message = write_request({"pixels": pixels()})
    read = read_request(message.body, str(message.header_length)).inputs["pixels"]
    assert np.shares_memory(read, np.frombuffer(message.body, np.uint8))


@pytest.mark.parametrize(
    "value", [b"0," * MAX_JSON_VALUES + b"0", nested(512, 2100), b"{}," * MAX_JSON_VALUES + b"0"]
)
def test_json_lists_no_more_values_than_memory_allows(value: bytes) -> None:
    with pytest.raises(WireError, match="binary data"):
        read_request(b'{"id": [' + value + b"]}", None)


def test_json_has_no_more_names_than_memory_allows() -> None:
    names = b",".join(b'"%d":0' % number for number in range(MAX_JSON_NAMES))
    with pytest.raises(WireError, match="may have 262144 names, got 262145"):
        read_request(b'{"id": {' + names + b"}}", None)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"inputs": [NaN]}', b"\xff\xfe"])
def test_what_no_parser_reads_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="cannot be read"):
        read_request(body, None)


@pytest.mark.parametrize("parameters", [{"shared_memory_region": "r", "shared_memory_byte_size": 8}])
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_shared_memory_is_refused_on_either_side(side: str, parameters: dict[str, Any]) -> None:
    inputs = tensor(data=None, parameters=parameters) if side == "inputs" else tensor()
    outputs = [{"name": "y", "parameters": parameters}] if side == "outputs" else []
    with pytest.raises(WireError, match="shared memory is not supported"):
        read_request(body_of(inputs, outputs=outputs), None)


def test_what_a_request_asks_for_is_read() -> None:
    body = body_of(
        tensor(),
        id="42",
        parameters={"binary_data_output": True, "priority": 1},
        outputs=[{"name": "y", "parameters": {"binary_data": False, "classification": 2}}, {"name": "z"}],
    )
    read = read_request(body, None)
    assert read.id == "42"
    assert read.binary
    assert read.outputs == [RequestedOutput("y", False, 2), RequestedOutput("z")]


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"id": 5}, "id"),
        ({"parameters": []}, "parameters"),
        ({"parameters": {"binary_data_output": 1}}, "binary_data_output"),
        ({"outputs": {}}, "outputs"),
        ({"outputs": ["y"]}, "outputs"),
        ({"outputs": [{}]}, "name"),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": "yes"}}]}, "binary_data"),
        ({"outputs": [{"name": "y", "parameters": {"classification": -1}}]}, "classification"),
        ({"outputs": [{"name": "y", "parameters": {"classification": True}}]}, "classification"),
        ({"inputs": []}, "inputs"),
        ({"inputs": None}, "inputs"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], at_fault: str) -> None:
    with pytest.raises(WireError, match=at_fault):
        read_request(json.dumps({"inputs": [tensor()], **fields}).encode(), None)


@pytest.mark.parametrize("outputs", [[], None])
def test_no_outputs_asks_for_all(outputs: Any) -> None:
    assert read_request(body_of(tensor(), outputs=outputs), None).outputs == ()


def test_texts_are_written_in_both_forms() -> None:
    labels = np.array([["0.900000:1:ä"]], np.object_)
    answer = write_message({}, "outputs", {"y": labels}, binary=set())
    (output,) = orjson.loads(answer.body)["outputs"]
    assert output == {"name": "y", "shape": [1, 1], "datatype": "BYTES", "data": ["0.900000:1:ä"]}
    binary = write_message({}, "outputs", {"y": labels}, binary={"y"})
    header, content = split(binary.body, str(binary.header_length))
    text = "0.900000:1:ä".encode()
    assert bytes(content) == len(text).to_bytes(4, "little") + text
    assert header["outputs"][0]["parameters"] == {"binary_data_size": 4 + len(text)}


def test_an_answer_may_mix_both_forms() -> None:
    outputs = {"a": pixels(1), "b": pixels(2), "c": pixels(3)}
    message = write_message({}, "outputs", outputs, binary={"a", "c"})
    _, read = read_response(message.body, str(message.header_length))
    assert all(np.array_equal(read[name], array) for name, array in outputs.items())


def test_a_request_reads_as_it_was_meant() -> None:
    message = write_request({"pixels": pixels()}, ["poses"])
    read = read_request(message.body, str(message.header_length))
    assert isinstance(read, InferRequest)
    assert read.outputs == [RequestedOutput("poses", binary=True)]
    assert message.headers["Inference-Header-Content-Length"] == str(message.header_length)
