"""Bytes of a gRPC message to a protobuf message, with a limit on what it may grow to in memory."""

from typing import Any

from google.protobuf.message import DecodeError

from service.errors import BodyTooLargeError, MalformedBodyError

RAW_INPUT_CONTENTS = 7  # the field's number in ModelInferRequest
# An empty tensor has two bytes on the wire and a hundred in memory, a small integer one and eight.
MAX_FIELDS = 1024
MAX_OTHER_BYTES = 4 * 2**20  # of fields but for raw_input_contents: a million FP32 values
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types of proto3
MAX_VARINT_BYTES = 10


def parse_message(kind: Any, body: bytes) -> Any:
    """The message of a class that was generated from the protocol's .proto.

    Raises:
        MalformedBodyError: the bytes are no such message.
        BodyTooLargeError: besides raw tensors it holds more than a request needs.
    """
    _check_size(body)
    try:
        return kind.FromString(body)
    except DecodeError:
        raise MalformedBodyError(f"the message is no {kind.DESCRIPTOR.name} of the protocol") from None


def _check_size(body: bytes) -> None:
    """Walk over the fields of the outermost message; raises what `parse_message` raises."""
    place = fields = other_bytes = 0
    while place < len(body):
        begun = place
        number, place = _end_of_field(body, place)
        fields += 1
        other_bytes += 0 if number == RAW_INPUT_CONTENTS else place - begun
        if fields > MAX_FIELDS:
            raise BodyTooLargeError(f"a message may list {MAX_FIELDS} tensors and other fields, got more")
        if other_bytes > MAX_OTHER_BYTES:
            raise BodyTooLargeError(
                f"a message may have {MAX_OTHER_BYTES} bytes beside raw_input_contents, got more; send "
                "tensors there"
            )


def _end_of_field(body: bytes, place: int) -> tuple[int, int]:
    """The number of the field that begins here, and where it ends."""
    tag, place = _varint(body, place)
    kind = tag & 7
    if kind == VARINT:
        _, place = _varint(body, place)
    elif kind == LENGTH:
        size, place = _varint(body, place)
        place += size
    elif kind in (FIXED64, FIXED32):
        place += 8 if kind == FIXED64 else 4
    else:
        raise MalformedBodyError(f"the message is not proto3, which has no wire type {kind}")
    if place > len(body):
        raise MalformedBodyError("the last field of the message is cut off")
    return tag >> 3, place


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """The integer that begins here, and where it ends."""
    value = 0
    for index, byte in enumerate(body[place : place + MAX_VARINT_BYTES]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, place + index + 1
    raise MalformedBodyError("an integer in the message has no end")
