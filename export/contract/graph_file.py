"""Which tensors of an ONNX file keep their values elsewhere, told from its bytes.

A tensor may say that its values lie in any file that the process can read, or at an address in its memory. No
bundle may have such a tensor, but for the explain graph, whose weights lie in the encoder's file; graphs that
the service derives have them, to map their weights. The bytes are read as protobuf encodes them, because
importing onnx takes memory that a service would have to keep, and because searching them for a name finds
only one of the ways to write it.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from export.contract.manifest import BundleError

Kind = Literal["model", "training", "function", "graph", "node", "attribute", "sparse tensor", "tensor"]

# The fields of each kind of message that may hold a tensor, near or far (onnx.proto).
HOLDERS: Mapping[Kind, Mapping[int, Kind]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse tensor",
        23: "sparse tensor",
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
# The fields of a tensor; the location 0, the default, is in the tensor itself.
DIMS, DATA_TYPE, NAME, EXTERNAL_DATA, DATA_LOCATION = 1, 2, 8, 13, 14
KEY, VALUE = 1, 2  # of an entry of external data
FLOAT32 = 1  # a data type

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # how protobuf writes a field
MAX_VARINT_BYTES = 10


class FarTensor(NamedTuple):
    """An initializer whose values lie in another file.

    Attributes:
        data_type: ONNX's number of it.
        file: its name, in the folder of the graph.
        offset: of the first value, in bytes.
    """

    name: str
    data_type: int
    shape: tuple[int, ...]
    file: str
    offset: int

    @property
    def end(self) -> int:
        """Behind the last value, in bytes, if they are float32."""
        return self.offset + 4 * math.prod(self.shape)


def check_self_contained(content: bytes, file: str) -> None:
    """All values of the graph's tensors are in its file.

    Args:
        content: the file's bytes.
        file: its name, for the error.

    Raises:
        BundleError: a tensor keeps its values elsewhere, or the bytes are no protobuf message.
    """
    if any(_notes_elsewhere(content, file)):
        raise BundleError(f"{file} keeps tensors in other files (external data); export it as one file")


def check_weights_within(content: bytes, file: str, lender: str, lender_bytes: int) -> None:
    """Values of the graph's tensors are in its file, or are float32 weights in one other file.

    Args:
        content: the file's bytes.
        file: its name, for the error.
        lender: name of the other file.
        lender_bytes: its size.

    Raises:
        BundleError: a tensor keeps its values elsewhere, or the bytes are no protobuf message.
    """
    weights = list(far_tensors(content, file))
    # As many as there are notes: no tensor of a node, no second note that takes back the first.
    are_all = len(weights) == sum(1 for _ in _notes_elsewhere(content, file))
    if not are_all or not all(
        weight.data_type == FLOAT32
        and weight.file == lender
        and 0 <= weight.offset <= weight.end <= lender_bytes
        for weight in weights
    ):
        raise BundleError(f"{file} keeps tensors elsewhere than in {lender}")


def _notes_elsewhere(content: bytes, file: str) -> Iterator[bool]:
    """True for each note of a tensor, wherever it is, that its values are in another file."""
    messages: list[tuple[Kind, memoryview]] = [("model", memoryview(content))]
    while messages:
        kind, message = messages.pop()
        for number, value in _fields(message, file):
            if kind == "tensor" and number == DATA_LOCATION and value != 0:
                yield True
            inner = HOLDERS[kind].get(number)
            if inner and isinstance(value, memoryview):
                messages.append((inner, value))


def far_tensors(content: bytes, file: str) -> Iterator[FarTensor]:
    """The graph's initializers that keep their values in another file.

    Args:
        content: the file's bytes, as ONNX Runtime writes a graph.
        file: its name, for the error.

    Raises:
        BundleError: the bytes are no protobuf message.
    """
    graph_field, initializer_field = 7, 5
    for graph in _messages(memoryview(content), graph_field, file):
        for tensor in _messages(graph, initializer_field, file):
            fields = list(_fields(tensor, file))
            numbers = {number: value for number, value in fields if isinstance(value, int)}
            if not numbers.get(DATA_LOCATION):
                continue
            name = "".join(str(name, "utf-8", "replace") for name in _messages(tensor, NAME, file))
            try:
                where = dict(_entry(entry, file) for entry in _messages(tensor, EXTERNAL_DATA, file))
                yield FarTensor(
                    name=name,
                    data_type=numbers[DATA_TYPE],
                    shape=tuple(_shape(fields, file)),
                    file=where["location"],
                    offset=int(where.get("offset", "0")),
                )
            except (KeyError, ValueError):
                raise BundleError(f"{file} does not say where the values of {name[:80]!r} are") from None


def _messages(message: memoryview, number: int, file: str) -> Iterator[memoryview]:
    for found, value in _fields(message, file):
        if found == number and isinstance(value, memoryview):
            yield value


def _entry(message: memoryview, file: str) -> tuple[str, str]:
    texts = {
        number: str(value, "utf-8") for number, value in _fields(message, file) if not isinstance(value, int)
    }
    return texts[KEY], texts[VALUE]


def _shape(fields: list[tuple[int, int | memoryview]], file: str) -> Iterator[int]:
    """Sizes are written one by one, or all together."""
    for number, value in fields:
        if number == DIMS and isinstance(value, int):
            yield value
        elif number == DIMS and isinstance(value, memoryview):
            at = 0
            while at < len(value):
                size, at = _varint(value, at, file)
                yield size


def _fields(message: memoryview, file: str) -> Iterator[tuple[int, int | memoryview]]:
    """The numbers and values of a message's fields, in order."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at, file)
        number, encoding = (tag & 0xFFFFFFFF) >> 3, tag & 7  # readers keep 32 bits of a tag
        if encoding == VARINT:
            value, at = _varint(message, at, file)
            yield number, value
            continue
        if encoding == BYTES:
            size, at = _varint(message, at, file)
        elif encoding in (FIXED_32, FIXED_64):
            size = 4 if encoding == FIXED_32 else 8
        else:
            raise _no_graph(file)
        if size > len(message) - at:
            raise _no_graph(file)
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int, file: str) -> tuple[int, int]:
    """The integer that begins there, seven bits a byte, the lowest first; and where it ends."""
    value = 0
    for index, byte in enumerate(message[at : at + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _no_graph(file)


def _no_graph(file: str) -> BundleError:
    return BundleError(f"{file} is no ONNX graph: it is no protobuf message")
