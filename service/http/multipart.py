"""A multipart/form-data body as its parts in order: text, or files.

Starlette's own parser looks up any charset that a client names, which fails in several ways and keeps every
unknown name in memory for ever, and it runs on the event loop. This one reads UTF-8 and runs in any thread.
"""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import MalformedBodyError, TooManyPicturesError, UnsupportedBodyError, shown

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MULTIPART = "multipart/form-data"
MAX_TEXT_BYTES = 2**20  # of one text part
MAX_TEXTS = 32  # text parts; no route has so many fields

# It warns of every body that it cannot read, which is a client's fault and answered with an error.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class Upload(NamedTuple):
    """A file as it arrived; `filename` is None if the client gave none."""

    filename: str | None
    content: bytes


Part = tuple[str, str | Upload]  # a field's name, and what it holds


def parse_form(body: bytes, content_type: str, max_files: int) -> list[Part]:
    """The parts of a whole body. Blocks: it reads 6 MiB of a hostile body in a second.

    Args:
        body: as it arrived.
        content_type: the header's value, which names the boundary.
        max_files: maximum parts that are files.

    Raises:
        UnsupportedBodyError: a charset other than UTF-8.
        MalformedBodyError: there is no boundary, no multipart data, or no closing boundary.
        TooManyPicturesError: more than `max_files`.
    """
    reader = _Reader(max_files)
    try:
        MultipartParser(_boundary(content_type), reader.callbacks()).write(body)
    except FormParserError as error:
        raise _unreadable(str(error)) from None
    if not reader.is_complete:
        raise _unreadable("it ends before its closing boundary")
    return reader.parts


def _boundary(content_type: str) -> bytes:
    _, parameters = parse_options_header(content_type)
    charset = parameters.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in {"utf-8", "utf8"}:
        raise UnsupportedBodyError(f"{MULTIPART} is read as utf-8; got charset={shown(charset)}")
    if not (boundary := parameters.get(b"boundary")):
        raise _unreadable("its Content-Type names no boundary")
    return boundary


@dataclass
class _Part:
    """A part that is being read."""

    disposition: bytes = b""
    name: str = ""
    is_file: bool = False
    filename: str | None = None
    content: bytearray = field(default_factory=bytearray)


class _Reader:
    """Collects the parts of a body from the library's callbacks.

    Attributes:
        parts: complete parts.
        is_complete: the closing boundary was found.
    """

    def __init__(self, max_files: int) -> None:
        self.parts: list[Part] = []
        self.is_complete = False
        self._max_files = max_files
        self._files = 0
        self._part = _Part()
        self._header = b""  # the name of the one being read
        self._value = b""

    def callbacks(self) -> "MultipartCallbacks":
        """The callbacks, by the library's names of its events."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._read_header,
            "on_header_value": self._read_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._read_content,
            "on_part_end": self._end,
            "on_end": self._complete,
        }

    def _begin(self) -> None:
        self._part = _Part()

    def _read_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _read_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._part.disposition = self._value
        self._header = self._value = b""

    def _end_headers(self) -> None:
        part = self._part
        _, parameters = parse_options_header(part.disposition)
        if b"name" not in parameters:
            raise _unreadable("the Content-Disposition of a part gives no name")
        part.name = _text(parameters[b"name"])
        part.is_file = b"filename" in parameters
        if part.is_file:
            part.filename = _text(parameters[b"filename"]) or None
            self._files += 1
        if self._files > self._max_files:
            raise too_many_images(self._max_files, "more")
        if len(self.parts) + 1 - self._files > MAX_TEXTS:
            raise _unreadable(f"it has more than {MAX_TEXTS} parts that are not files")

    def _read_content(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        part.content += data[start:end]
        if not part.is_file and len(part.content) > MAX_TEXT_BYTES:
            raise _unreadable(f"a part that is not a file has more than {MAX_TEXT_BYTES} bytes")

    def _end(self) -> None:
        part = self._part
        content = Upload(part.filename, bytes(part.content)) if part.is_file else _text(part.content)
        self.parts.append((part.name, content))

    def _complete(self) -> None:
        self.is_complete = True


def too_many_images(limit: int, came: int | str) -> TooManyPicturesError:
    """The error for more images than one request may have."""
    return TooManyPicturesError(
        f"a request may have {limit} images (CAPSNET_MAX_IMAGES_PER_REQUEST), got {came}"
    )


def _text(content: bytes | bytearray) -> str:
    """UTF-8, or Latin-1 as old clients send it."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _unreadable(why: str) -> MalformedBodyError:
    return MalformedBodyError(f"the multipart body cannot be read: {why}")
