"""Picture files of every format and mode that Pillow writes, whole and damaged."""

import struct
import zlib
from typing import Any

import numpy as np
import pillow_heif
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz.mutations import Draw, damaged, mostly
from tests.support.small_pictures import saved

pillow_heif.register_heif_opener()  # it also writes HEIC

MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "F"),
    "GIF": ("1", "L", "P", "RGB", "RGBA"),
    "AVIF": ("L", "RGB", "RGBA"),
    "HEIF": ("L", "RGB", "RGBA"),
}
ANIMATED = {"PNG", "WEBP", "TIFF", "GIF"}
WITH_EXIF = {"PNG", "JPEG", "WEBP", "TIFF"}
ORIENTATION = 0x0112
ORIENTATIONS = (*range(1, 9), 0, 9, 255, 65535)
TIFF_CODINGS = (None, "tiff_lzw", "tiff_adobe_deflate", "packbits")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
SIZES = st.tuples(st.integers(8, 100), st.integers(8, 100))


@st.composite
def pictures(draw: Draw, is_whole: bool = True) -> bytes:
    """A file of a size from 1 to 100 pixels, or as long as no picture is; whole but for what EXIF says."""
    kind = draw(st.sampled_from(sorted(MODES)))
    mode = draw(st.sampled_from(MODES[kind]))
    size = [mostly(draw, side, [1, 7, 8, 2000]) for side in draw(st.just((28, 28)) | SIZES)]
    frames = [_frame(draw, mode, tuple(size)) for _ in range(mostly(draw, 1, [3]))]
    return saved(frames[0], kind, **_options(draw, kind, mode, frames[1:], is_whole))


@st.composite
def damaged_pictures(draw: Draw) -> bytes:
    """A file that may have been whole once; a PNG may even have the checksums of what it is now."""
    content = draw(pictures(is_whole=False))
    if content.startswith(SIGNATURE) and draw(st.booleans()):
        content = SIGNATURE + b"".join(_shuffled(draw, png_chunks(content)))
    content = draw(damaged(content))
    return with_checksums(content) if draw(st.booleans()) else content


def _frame(draw: Draw, mode: str, size: tuple[int, int]) -> Image.Image:
    """Noise or one flat level."""
    chance, shape = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), size[::-1]
    if draw(st.booleans()):
        level = int(chance.integers(256))
        return Image.new("RGBA", size, (level, level, level, int(chance.integers(256)))).convert(mode)
    if mode == "I;16":
        return Image.fromarray(chance.integers(0, 2**16, shape, np.uint16))
    if mode == "I":
        return Image.fromarray(chance.integers(0, draw(st.sampled_from([2**16, 2**31])), shape, np.int32))
    if mode == "F":
        values = np.frombuffer(chance.bytes(4 * shape[0] * shape[1]), np.float32).reshape(shape)
        return Image.fromarray(mostly(draw, np.nan_to_num(values), [values]))
    if mode in {"YCbCr", "LAB", "CMYK"}:  # of which each pixel has bytes of its own
        return Image.frombytes(mode, size, chance.bytes(len(Image.new(mode, size).tobytes())))
    return Image.fromarray(chance.integers(0, 256, (*shape, 4), np.uint8)).convert(mode)


def _options(draw: Draw, kind: str, mode: str, further: list[Image.Image], is_whole: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if kind in WITH_EXIF and draw(st.booleans()):
        exif = Image.Exif()
        known = ORIENTATIONS[:8] if kind == "TIFF" else ORIENTATIONS  # libtiff writes no others
        exif[ORIENTATION] = draw(st.sampled_from(known))
        options["exif"] = exif if is_whole or kind == "TIFF" else draw(damaged(exif.tobytes()))
    if kind in ANIMATED and further:
        options |= {"save_all": True, "append_images": further}
    if kind == "TIFF":
        codings = (*TIFF_CODINGS, "group4") if mode == "1" else TIFF_CODINGS
        options["compression"] = draw(st.sampled_from(codings))
    if kind == "JPEG":
        options["progressive"] = draw(st.booleans())
    if kind == "AVIF":
        options["speed"] = 10
    if kind == "WEBP":
        options |= {"lossless": draw(st.booleans()), "method": 0}
    if mode == "P" and kind in {"PNG", "GIF"} and not further and draw(st.booleans()):
        options["transparency"] = draw(st.integers(0, 255))
    return options


def png_chunks(content: bytes) -> list[bytes]:
    """The chunks behind the signature of a PNG, each with its length, kind and checksum."""
    chunks, place = [], len(SIGNATURE)
    while place + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, place)
        chunks.append(content[place : place + 12 + length])
        place += 12 + length
    return chunks


def with_checksums(content: bytes) -> bytes:
    """The content with true checksums, if it is made of PNG chunks."""
    if not content.startswith(SIGNATURE):
        return content
    chunks = [
        chunk[:-4] + struct.pack(">I", zlib.crc32(chunk[4:-4])) if len(chunk) >= 12 else chunk
        for chunk in png_chunks(content)
    ]
    return SIGNATURE + b"".join(chunks)


def _shuffled(draw: Draw, chunks: list[bytes]) -> list[bytes]:
    """Some of the chunks, some of them twice, in any order."""
    return draw(st.lists(st.sampled_from(chunks), max_size=len(chunks) + 2)) if chunks else chunks
