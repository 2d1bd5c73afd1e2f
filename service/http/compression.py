"""Bodies packed as the HTTP headers Content-Encoding and Accept-Encoding name it: gzip and deflate."""

import zlib

from service.errors import BodyTooLargeError, MalformedBodyError, UnsupportedCodingError, shown

CODINGS = {"gzip": 31, "deflate": 15}  # window bits, by which zlib tells them apart
EFFORT = 1  # the least: what there is to gain in floats, more effort hardly improves


def decompress(body: bytes, coding: str, most_bytes: int) -> bytes:
    """The body without its coding; never more than `most_bytes` are unpacked. Blocks.

    Args:
        body: as it came.
        coding: "gzip", "deflate" or "identity", in lower case.
        most_bytes: of what it unpacks to.

    Raises:
        UnsupportedCodingError: another coding.
        BodyTooLargeError: it unpacks to more.
        MalformedBodyError: it is damaged, cut off, or goes on behind its end.
    """
    if coding == "identity":
        return body
    if coding not in CODINGS:
        raise UnsupportedCodingError(f"Content-Encoding must be gzip or deflate, got {shown(coding)}")
    unpacker = zlib.decompressobj(CODINGS[coding])
    try:
        content = unpacker.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise MalformedBodyError(f"the body is no valid {coding}: {error}") from None
    if len(content) > most_bytes:
        raise BodyTooLargeError(
            f"the body unpacks to more than {most_bytes} bytes, which is the limit (CAPSNET_MAX_BODY_BYTES)"
        )
    if not unpacker.eof:
        raise MalformedBodyError(f"the body is no valid {coding}: it ends in the middle")
    if unpacker.unused_data:
        raise MalformedBodyError(f"the body is no valid {coding}: it goes on behind its end")
    return content


def compress(content: bytes, coding: str) -> bytes:
    """The content as "gzip" or "deflate". Blocks."""
    packer = zlib.compressobj(EFFORT, wbits=CODINGS[coding])
    return packer.compress(content) + packer.flush()
