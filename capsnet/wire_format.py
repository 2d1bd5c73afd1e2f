"""The wire format of the Open Inference Protocol: tensors as JSON, or as raw bytes behind a JSON header.

In the binary form, a message is a JSON object, whose length is in the header Inference-Header-Content-Length,
followed by the values of its tensors, little-endian and row-major, in the order in which the JSON lists them.
Client and service share this module; it contains nothing of a server.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
"""

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Labels = NDArray[np.object_]  # of str
Arrays = Mapping[str, Floats]
Inputs = Mapping[str, Floats | NDArray[np.uint8]]

HEADER_LENGTH = "Inference-Header-Content-Length"
FLOAT = np.dtype("<f4")
DATATYPES: dict[str, np.dtype[Any]] = {"FP32": FLOAT, "UINT8": np.dtype(np.uint8)}  # of inputs
UINT8_MAX = 255
# A value takes about ten times as many bytes in memory as in JSON.
MAX_JSON_VALUES = 2**20  # and as many lists, of which each takes 72 bytes
MAX_JSON_NAMES = 2**18  # an object of one name takes 230 bytes
MAX_AXES = 8
ALIGNMENT = 16  # bytes, as of allocated memory
SHOWN = 80  # maximum characters of a value that an error message repeats


class WireError(ValueError):
    """The message does not follow the protocol; says what was expected and what came."""


@dataclass(frozen=True)
class RequestedOutput:
    """An output that a request wants.

    Attributes:
        binary: as raw bytes; None if the request's `binary_data_output` decides.
        classes: the best k as "score:index:label" instead of the values; 0 for the values.
    """

    name: str
    binary: bool | None = None
    classes: int = 0


@dataclass(frozen=True)
class InferRequest:
    """A request to run a graph.

    Attributes:
        inputs: float32 or uint8 of any shape, by name.
        outputs: the outputs wanted, in this order; empty for all.
        binary: whether outputs are raw bytes unless they say otherwise.
        id: repeated in the response.
    """

    inputs: Inputs
    outputs: Sequence[RequestedOutput] = ()
    binary: bool = False
    id: str | None = None


@dataclass(frozen=True)
class Message:
    """The body of a message; `header_length` in bytes, None if all of it is JSON."""

    body: bytes
    header_length: int | None

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers for the body."""
        if self.header_length is None:
            return {"Content-Type": "application/json"}
        return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(self.header_length)}


def write_request(inputs: Arrays, outputs: Sequence[str] = ()) -> Message:
    """A request in binary form, float32 of any shape; without `outputs` it wants all."""
    header: dict[str, Any] = {"parameters": {"binary_data_output": True}}
    if outputs:
        header["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    return write_message(header, "inputs", inputs, binary=set(inputs))


def read_request(body: bytes, header_length: str | None) -> InferRequest:
    """Parse a request; arrays are views of the body if possible.

    Args:
        body: all of it, uncompressed.
        header_length: the HTTP header Inference-Header-Content-Length, None without one.

    Raises:
        WireError: it does not follow the protocol.
    """
    header, binary = split(body, header_length)
    parameters = _parameters(header, "the request")
    request_id = header.get("id")
    if not isinstance(request_id, str | None):
        raise WireError(f"id must be a string, got {_shown(request_id)}")
    asks = header.get("outputs") not in (None, [])
    return InferRequest(
        inputs=_read_tensors(header, "inputs", binary),
        outputs=[_requested(given) for given in _objects(header, "outputs")] if asks else (),
        binary=_flag(parameters, "binary_data_output", "the request") or False,
        id=request_id,
    )


def read_response(body: bytes, header_length: str | None) -> tuple[dict[str, Any], Arrays]:
    """The JSON object of a response, and its outputs, float32, by name; views of the body if possible.

    Raises:
        WireError: it does not follow the protocol.
    """
    header, binary = split(body, header_length)
    return header, _read_tensors(header, "outputs", binary, ("FP32",))


def write_message(
    header: Mapping[str, Any], side: str, arrays: Mapping[str, Floats | Labels], binary: set[str]
) -> Message:
    """The header with the arrays as its `side`, "inputs" or "outputs"; those in `binary` as raw bytes."""
    contents = {name: raw_bytes(arrays[name]) for name in binary}
    tensors = [_describe(name, array, contents.get(name)) for name, array in arrays.items()]
    content = orjson.dumps({**header, side: tensors}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not binary:
        return Message(content, None)
    content += b" " * (-len(content) % ALIGNMENT)  # so that the reader's arrays need no copy
    return Message(b"".join([content, *(contents[name] for name in arrays if name in binary)]), len(content))


def split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON object of a body, and the bytes behind it.

    Raises:
        WireError: there is no JSON object of that length, or it has too many values or names.
    """
    length = len(body) if header_length is None else _length(header_length, len(body))
    whole = memoryview(body)
    commas, lists, objects = (body.count(sign, 0, length) for sign in (b",", b"[", b"{"))
    values = max(commas + 1, lists, objects)  # at most
    names = body.count(b":", 0, length)  # at most
    if names > MAX_JSON_NAMES:
        raise WireError(f"the JSON may have {MAX_JSON_NAMES} names, got {names}")
    if values > MAX_JSON_VALUES:
        raise WireError(
            f"the JSON may list {MAX_JSON_VALUES} values, got {values}; send tensors as binary data "
            f"(binary_data_size, and the header {HEADER_LENGTH})"
        )
    try:
        header = orjson.loads(whole[:length])
    except orjson.JSONDecodeError as error:
        raise WireError(f"the JSON of {length} bytes cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise WireError(f"expected a JSON object, got {_shown(header)}")
    return header, whole[length:]


def _read_tensors(
    header: Mapping[str, Any], side: str, binary: memoryview, datatypes: Collection[str] = DATATYPES
) -> dict[str, Any]:
    """The tensors that the header lists as its `side`, with values from the JSON or the binary part.

    Args:
        header: of the message.
        side: "inputs" or "outputs".
        binary: the bytes behind the header.
        datatypes: those of DATATYPES that are read.

    Raises:
        WireError: a tensor is wrong; says which, and why.
    """
    arrays: dict[str, Any] = {}
    start = 0
    for given in _objects(header, side):
        name = _name(given, side)
        if name in arrays:
            raise WireError(f"{side} lists {_shown(name)} twice")
        place = f"{side[:-1]} {_shown(name)}"
        shape = check_shape(given.get("shape"), place)
        datatype = given.get("datatype")
        if datatype not in list(datatypes):
            raise WireError(f"{place}: datatype must be {' or '.join(datatypes)}, got {_shown(datatype)}")
        size = _binary_size(given, place)
        if size is None:
            arrays[name] = _from_json(given, shape, datatype, place)
            continue
        arrays[name] = _from_bytes(binary[start : start + size], size, shape, datatype, place)
        start += size
    if start != len(binary):
        raise WireError(
            f"the {side} take {start} bytes behind the JSON, but {len(binary)} came; binary_data_size must "
            f"be the size of each tensor, and {HEADER_LENGTH} the length of the JSON"
        )
    return arrays


def _from_bytes(
    content: memoryview, size: int, shape: tuple[int, ...], datatype: str, place: str
) -> NDArray[Any]:
    kind = DATATYPES[datatype]
    needed = math.prod(shape) * kind.itemsize
    if size != needed:
        raise WireError(
            f"{place}: shape {list(shape)} of {datatype} takes {needed} bytes, binary_data_size is {size}"
        )
    if len(content) != size:
        raise WireError(f"{place}: binary_data_size is {size}, but only {len(content)} bytes are left for it")
    values = np.frombuffer(content, kind)
    if not values.flags.aligned:  # the JSON may have any length; kernels need aligned data
        values = np.frombuffer(bytes(content), kind)
    return values.reshape(shape)


def _from_json(given: Mapping[str, Any], shape: tuple[int, ...], datatype: str, place: str) -> NDArray[Any]:
    """Values from a flat list in row-major order, or from lists nested like the shape."""
    data = given.get("data")
    if not isinstance(data, list):
        raise WireError(
            f"{place}: expected data, a list, or the parameter binary_data_size; got "
            f"{_shown(data) if 'data' in given else 'neither'}"
        )
    flat = _flatten(data, shape, place) if data and isinstance(data[0], list) else data
    if len(flat) != math.prod(shape):
        raise WireError(f"{place}: shape {list(shape)} takes {math.prod(shape)} values, got {len(flat)}")
    kinds = set(map(type, flat))
    if not kinds <= {int, float}:  # numpy would convert "0.5", true and null
        names = ", ".join(sorted(kind.__name__ for kind in kinds - {int, float}))
        raise WireError(f"{place}: data must hold numbers, got {names}")
    if datatype == "UINT8":
        if not (kinds == {int} and min(flat) >= 0 and max(flat) <= UINT8_MAX):
            raise WireError(f"{place}: data of UINT8 must hold integers from 0 to {UINT8_MAX}")
        return np.array(flat, np.uint8).reshape(shape)
    with np.errstate(over="ignore"):  # 1e300 becomes infinite, which is out of any range
        return np.array(flat, np.float32).reshape(shape)


def _flatten(data: list[Any], shape: tuple[int, ...], place: str) -> list[Any]:
    level: list[Any] = [data]
    for size in shape:
        if not all(type(part) is list and len(part) == size for part in level):
            raise WireError(f"{place}: data must be flat, or nested like its shape {list(shape)}")
        level = list(chain.from_iterable(level))
    return level


def raw_bytes(array: Floats | Labels) -> memoryview | bytes:
    """The values of an array in binary form."""
    if array.dtype == np.object_:
        texts = [str(text).encode() for text in array.flat]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return np.ascontiguousarray(array, FLOAT).reshape(-1).data.cast("B")


def _describe(name: str, array: Floats | Labels, content: memoryview | bytes | None) -> dict[str, Any]:
    is_text = array.dtype == np.object_
    tensor = {"name": name, "shape": list(array.shape), "datatype": "BYTES" if is_text else "FP32"}
    if content is not None:
        return {**tensor, "parameters": {"binary_data_size": len(content)}}
    if is_text:
        return {**tensor, "data": list(array.flat)}
    return {**tensor, "data": np.ascontiguousarray(array, np.float32).reshape(-1)}


def _length(given: str, largest: int) -> int:
    # Digits only: int() also takes signs, spaces and underscores, and fails on thousands of digits.
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and int(given) <= largest):
        raise WireError(
            f"{HEADER_LENGTH} must be the length of the JSON in bytes, at most the body's {largest}; "
            f"got {_shown(given)}"
        )
    return int(given)


def _objects(header: Mapping[str, Any], side: str) -> list[dict[str, Any]]:
    listed = header.get(side)
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        came = _shown(listed) if side in header else "none"
        raise WireError(f"{side} must be a list of one or more tensor objects, got {came}")
    return listed


def _name(given: Mapping[str, Any], side: str) -> str:
    name = given.get("name")
    if not isinstance(name, str):
        raise WireError(f"every tensor in {side} needs a name, a string; got {_shown(name)}")
    return name


def check_shape(shape: object, place: str) -> tuple[int, ...]:
    """The shape of a tensor.

    As each size is at least 1, none exceeds the number of values, which is checked against the data.

    Args:
        shape: the list that came.
        place: the tensor, for the error.

    Raises:
        WireError: it is no list of a few sizes.
    """
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_AXES
        or not all(type(size) is int and size >= 1 for size in shape)
    ):
        came = _shown(shape)
        if isinstance(shape, list):
            came = f"[{', '.join(map(_shown, shape[: MAX_AXES + 1]))}]"
        raise WireError(f"{place}: shape must be a list of up to {MAX_AXES} sizes of at least 1, got {came}")
    return tuple(shape)


def _binary_size(given: Mapping[str, Any], place: str) -> int | None:
    parameters = _parameters(given, place)
    if "shared_memory_region" in parameters:
        raise WireError(f"{place}: shared memory is not supported; send data, or binary_data_size")
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise WireError(f"{place}: binary_data_size must be a number of bytes, got {_shown(size)}")
    if "data" in given:
        raise WireError(f"{place}: has both data and binary_data_size; give one of them")
    return size


def _requested(given: Mapping[str, Any]) -> RequestedOutput:
    name = _name(given, "outputs")
    place = f"output {_shown(name)}"
    parameters = _parameters(given, place)
    if "shared_memory_region" in parameters:
        raise WireError(f"{place}: shared memory is not supported")
    classes = check_classes(parameters.get("classification", 0), place)
    return RequestedOutput(name, _flag(parameters, "binary_data", place), classes)


def check_classes(classes: object, place: str) -> int:
    """How many classes an output is to give; 0 for its values.

    Raises:
        WireError: it is no such number.
    """
    if type(classes) is not int or classes < 0:
        raise WireError(f"{place}: classification must be how many classes to give, got {_shown(classes)}")
    return classes


def _flag(parameters: Mapping[str, Any], name: str, place: str) -> bool | None:
    flag = parameters.get(name)
    if not isinstance(flag, bool | None):
        raise WireError(f"{place}: {name} must be true or false, got {_shown(flag)}")
    return flag


def _parameters(given: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Parameters of an object; unknown ones are ignored, as the protocol demands."""
    parameters = given.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise WireError(f"{place}: parameters must be an object, got {_shown(parameters)}")
    return parameters


def _shown(value: object) -> str:
    """The value as an error message repeats it, shortened."""
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value[: SHOWN + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN + 2 else f"{text[:SHOWN]}..."
