"""Bytes of a gRPC message to a protobuf message, with a limit on what it may grow to in memory."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from service.errors import BodyTooLargeError, MalformedBodyError

RAW_INPUT_CONTENTS = 7  # the field's number in ModelInferRequest
# An empty tensor or parameter has two bytes on the wire and a hundred in memory; a small integer has one and
# eight.
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
    _check_size(kind.DESCRIPTOR, body)
    try:
        return kind.FromString(body)
    except DecodeError:
        raise MalformedBodyError(f"the message is no {kind.DESCRIPTOR.name} of the protocol") from None


class _Field(NamedTuple):
    """A field of a message or of one within it; its value is what lies from `begin` to `end`."""

    number: int
    begin: int
    end: int
    is_outermost: bool


def _check_size(descriptor: Any, body: bytes) -> None:
    """Walk over the fields of the message, and of those within it; raises what `parse_message` raises."""
    other_bytes = 0
    for count, field in enumerate(_fields(descriptor, body, 0, len(body)), 1):
        if field.is_outermost and field.number != RAW_INPUT_CONTENTS:
            other_bytes += field.end - field.begin
        if count > MAX_FIELDS:
            raise BodyTooLargeError(
                f"a message may list {MAX_FIELDS} tensors, parameters and other fields, got more"
            )
        if other_bytes > MAX_OTHER_BYTES:
            raise BodyTooLargeError(
                f"a message may have {MAX_OTHER_BYTES} bytes beside raw_input_contents, got more; send "
                "tensors there"
            )


def _fields(
    descriptor: Any, body: bytes, place: int, end: int, is_outermost: bool = True
) -> Iterator[_Field]:
    """Every field, and after one that is a message, the fields of that. A packed list is one field."""
    while place < end:
        field, kind = _field_at(body, place, end, is_outermost)
        yield field
        known = descriptor.fields_by_number.get(field.number)
        if kind == LENGTH and known is not None and known.message_type is not None:
            yield from _fields(known.message_type, body, field.begin, field.end, is_outermost=False)
        place = field.end


def _field_at(body: bytes, place: int, end: int, is_outermost: bool) -> tuple[_Field, int]:
    """The field that begins here, and its wire type."""
    tag, begin = _varint(body, place)
    kind = tag & 7
    if kind == VARINT:
        _, after = _varint(body, begin)
    elif kind == LENGTH:
        size, begin = _varint(body, begin)
        after = begin + size
    elif kind in (FIXED64, FIXED32):
        after = begin + (8 if kind == FIXED64 else 4)
    else:
        raise MalformedBodyError(f"the message is not proto3, which has no wire type {kind}")
    if after > end:
        raise MalformedBodyError("the last field of the message is cut off")
    return _Field(tag >> 3, begin, after, is_outermost), kind


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """The integer that begins here, and where it ends."""
    value = 0
    for index, byte in enumerate(body[place : place + MAX_VARINT_BYTES]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, place + index + 1
    raise MalformedBodyError("an integer in the message has no end")
