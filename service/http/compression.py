"""Compressed bodies, by the names of Content-Encoding and Accept-Encoding: gzip and deflate."""

import zlib

from service.errors import BodyTooLargeError, MalformedBodyError, UnsupportedCodingError, shown

CODINGS = {"gzip": 31, "deflate": 15}  # window bits, by which zlib tells them apart
LEVEL = 1  # the fastest: higher levels hardly compress floats any better


def decompress(body: bytes, coding: str, max_bytes: int) -> bytes:
    """The decompressed body, never more than `max_bytes`. Blocks.

    Args:
        body: as it arrived.
        coding: "gzip" or "deflate", in lower case.
        max_bytes: of the decompressed body.

    Raises:
        UnsupportedCodingError: another coding.
        BodyTooLargeError: it decompresses to more.
        MalformedBodyError: it is damaged or cut off, or more data follows its end.
    """
    if coding not in CODINGS:
        raise UnsupportedCodingError(f"Content-Encoding must be gzip or deflate, got {shown(coding)}")
    decompressor = zlib.decompressobj(CODINGS[coding])
    try:
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise MalformedBodyError(f"the body is not valid {coding}: {error}") from None
    if len(content) > max_bytes:
        raise BodyTooLargeError(
            f"the body decompresses to more than {max_bytes} bytes, the limit (CAPSNET_MAX_BODY_BYTES)"
        )
    if not decompressor.eof:
        raise MalformedBodyError(f"the body is not valid {coding}: it is cut off")
    if decompressor.unused_data:
        raise MalformedBodyError(f"the body is not valid {coding}: more data follows its end")
    return content


def compress(content: bytes, coding: str) -> bytes:
    """The content as "gzip" or "deflate". Blocks."""
    compressor = zlib.compressobj(LEVEL, wbits=CODINGS[coding])
    return compressor.compress(content) + compressor.flush()
