"""Image files that Pillow does not write: 16-bit color, floats and integers of any width."""

import struct
import zlib

import numpy as np

from tests.support.decompression_bombs import chunk

PNG_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by channels: gray, gray and alpha, RGB, RGBA
TIFF_KINDS = {"u": 1, "i": 2, "f": 3}
SHORT, LONG, ASCII = 3, 4, 2


def png16(numbers: np.ndarray) -> bytes:
    """A PNG of uint16 numbers [H, W, C]."""
    height, width, channels = numbers.shape
    rows = numbers.astype(">u2").reshape(height, -1)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 16, PNG_COLOR_TYPES[channels], 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tiff(
    numbers: np.ndarray, order: str = "<", planar: bool = False, no_data: str = "", white_zero: bool = False
) -> bytes:
    """A TIFF of numbers [H, W, C] of any type, uncompressed; four channels are RGB and alpha."""
    height, width, channels = numbers.shape
    planes = np.moveaxis(numbers, 2, 0) if planar else numbers[None]
    strips = [plane.astype(numbers.dtype.newbyteorder(order)).tobytes() for plane in planes]
    offsets = np.cumsum([8, *map(len, strips)])
    tags: list[tuple[int, int, list[int] | bytes]] = [
        (256, LONG, [width]),
        (257, LONG, [height]),
        (258, SHORT, [numbers.itemsize * 8] * channels),
        (259, SHORT, [1]),
        (262, SHORT, [int(not white_zero) if channels == 1 else 2]),
        (273, LONG, list(offsets[:-1])),
        (277, SHORT, [channels]),
        (278, LONG, [height]),
        (279, LONG, list(map(len, strips))),
        (284, SHORT, [1 + planar]),
        *([(338, SHORT, [2])] if channels == 4 else []),
        (339, SHORT, [TIFF_KINDS[numbers.dtype.kind]] * channels),
        *([(42113, ASCII, no_data.encode() + b"\0")] if no_data else []),
    ]
    return _joined(order, b"".join(strips), int(offsets[-1]), tags)


def _joined(order: str, pixels: bytes, start: int, tags: list[tuple[int, int, list[int] | bytes]]) -> bytes:
    """Pixels behind the header, then the directory, then values of more than 4 bytes."""
    directory = struct.pack(order + "H", len(tags))
    behind, after = b"", start + 2 + 12 * len(tags) + 4
    for tag, kind, values in tags:
        sizes = {SHORT: "H", LONG: "I"}
        value = (
            values
            if isinstance(values, bytes)
            else struct.pack(f"{order}{len(values)}{sizes[kind]}", *values)
        )
        place = struct.pack(order + "I", after + len(behind)) if len(value) > 4 else value.ljust(4, b"\0")
        behind += value if len(value) > 4 else b""
        directory += struct.pack(order + "HHI", tag, kind, len(values)) + place
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "I", start) + pixels + directory + bytes(4) + behind
