"""Whether an ONNX file holds all of its graph, told from its bytes.

A tensor may say that its values lie elsewhere: in any file that the process can read, or at an address in its
memory. The bytes are read as protobuf encodes them, because importing onnx takes memory that a service would
have to keep, and because searching them for a name finds only one of the ways to write it.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

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
DATA_LOCATION = 14  # of a tensor; 0, the default, is in the tensor itself

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # how protobuf writes a field
MAX_VARINT_BYTES = 10


def check_self_contained(content: bytes, file: str) -> None:
    """All values of the graph's tensors are in its file.

    Args:
        content: the file's bytes.
        file: its name, for the error.

    Raises:
        BundleError: a tensor keeps its values elsewhere, or the bytes are no protobuf message.
    """
    messages: list[tuple[Kind, memoryview]] = [("model", memoryview(content))]
    while messages:
        kind, message = messages.pop()
        for number, value in _fields(message, file):
            if kind == "tensor" and number == DATA_LOCATION and value != 0:
                raise BundleError(
                    f"{file} keeps tensors in other files (external data); export it as one file"
                )
            inner = HOLDERS[kind].get(number)
            if inner and isinstance(value, memoryview):
                messages.append((inner, value))


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
