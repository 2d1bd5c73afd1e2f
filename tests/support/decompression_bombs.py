"""Small files that would become large pictures, or keep Pillow busy for hours; the corpus, and its makers."""

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pillow_heif
from PIL import Image

from export.contract.headers import MAX_GIF_BLOCKS, MAX_SCANS, MAX_TIFF_TAGS
from tests.support import small_pictures

pillow_heif.register_heif_opener()  # it also writes HEIC

MAX_PIXELS = 50_000_000
SIDE = 28
MIB = 2**20
LONG, SHORT, UNDEFINED, RATIONAL = 4, 3, 7, 5  # TIFF's types
# Number, type, how many values; the value, or None: what follows the tags.
Tag = tuple[int, int, int, int | None]


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE), dtype=np.uint8))


def saved(image_format: str, shown: Image.Image | None = None, **options: object) -> bytes:
    name = "HEIF" if image_format == "HEIC" else image_format
    return small_pictures.saved(shown or picture(), name, **options)


def zeros(size: int) -> bytes:
    return zlib.compress(bytes(size), 9)


# AVIF and HEIC: a size in a box.


def with_box_size(content: bytes, side: int) -> bytes:
    """The file, whose box says that it is a square of this side."""
    head, name, rest = content.partition(b"ispe")
    return head + name + rest[:4] + struct.pack(">II", side, side) + rest[12:]


# PNG: chunks behind a signature.


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int) -> bytes:
    """A header that promises so many gray pixels, and a hundred bytes of them."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zeros(100)) + chunk(b"IEND", b"")


def png_with(*chunks: bytes) -> bytes:
    """A good picture, with chunks between its header and its pixels."""
    content = saved("PNG")
    return content[:33] + b"".join(chunks) + content[33:]


def apng(frames: int) -> bytes:
    """A good picture, and behind it frames of garbage, each 100,000 x 100,000 as it says."""
    content = saved("PNG")
    control = struct.pack(">IIIIHHBB", 100_000, 100_000, 0, 0, 1, 1, 0, 0)
    later = [
        chunk(b"fcTL", struct.pack(">I", n) + control) + chunk(b"fdAT", struct.pack(">I", n) + b"garbage")
        for n in range(frames)
    ]
    return (
        content[:33] + chunk(b"acTL", struct.pack(">II", frames, 0)) + content[33:-12] + b"".join(later)
    ) + content[-12:]


# GIF: a screen, blocks, frames.


def gif(screen: int, frame: int, before: bytes = b"") -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", screen, screen, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    return head + before + b"," + struct.pack("<HHHHB", 0, 0, frame, frame, 0) + b"\x02\x02\x4c\x01\0;"


def animated_gif(frames: int) -> bytes:
    """A good picture, and behind it frames of garbage, each larger than the screen as it says."""
    later = b"," + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0) + b"\x02\x07garbage\0"
    return saved("GIF")[:-1] + later * frames + b";"


# TIFF: directories of tags.


def tiff(*tags: Tag, after: bytes = b"", next_offset: int = 0) -> bytes:
    """One directory, sorted; what follows it is where a tag points that says None."""
    here = 8 + 2 + 12 * len(tags) + 4
    content = b"II*\0" + struct.pack("<IH", 8, len(tags))
    for number, kind, values, value in sorted(tags):
        inline = "HH" if (kind, values) == (SHORT, 1) else "I"
        field = here if value is None else value
        content += struct.pack(f"<HHI{inline}", number, kind, values, *(field, 0)[: len(inline)])
    return content + struct.pack("<I", next_offset) + after


def gray_tags(width: int = SIDE, height: int = SIDE, compression: int = 1) -> tuple[Tag, ...]:
    numbers = {256: width, 257: height, 258: 8, 259: compression, 262: 1}
    return tuple((number, LONG, 1, value) for number, value in numbers.items())


def tiff_page(*more: Tag, after: bytes = b"", next_offset: int = 0) -> bytes:
    """A page without compression, whose zeros follow the tags."""
    strip: tuple[Tag, ...] = ((273, LONG, 1, None), (278, LONG, 1, SIDE), (279, LONG, 1, SIDE * SIDE))
    return tiff(*gray_tags(), *strip, *more, after=bytes(SIDE * SIDE) + after, next_offset=next_offset)


def tiff_tiles(side: int, compression: int) -> bytes:
    tags: tuple[Tag, ...] = ((322, LONG, 1, side), (323, LONG, 1, side), (324, LONG, 1, None))
    packed = zeros(side * side // 100)
    return tiff(*gray_tags(compression=compression), *tags, (325, LONG, 1, len(packed)), after=packed)


def tiff_whose_tags_share(count: int, size: int) -> bytes:
    """Packed pixels, and tags that all hold the same bytes; libtiff reads them once for each."""
    pixels = zeros(SIDE * SIDE)
    shared: list[Tag] = [(40_000 + n, UNDEFINED, size, None) for n in range(count)]
    strip: tuple[Tag, ...] = ((273, LONG, 1, None), (278, LONG, 1, SIDE), (279, LONG, 1, len(pixels)))
    return tiff(*gray_tags(compression=8), *strip, *shared, after=pixels.ljust(size, b"\0"))


def tiff_with_nested_exif(values: int) -> bytes:
    """A good page with an EXIF directory in which one tag has so many values."""
    offset = len(tiff_page((0x8769, LONG, 1, 0)))
    nested = struct.pack("<HHHIII", 1, 0x9000, RATIONAL, values, 8, 0) + bytes(8 * values)
    return tiff_page((0x8769, LONG, 1, offset), after=nested)


def big_tiff(width: int, height: int, tags: int) -> bytes:
    numbers = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 278: height, 279: SIDE * SIDE}
    entries = [struct.pack("<HHQQ", number, LONG, 1, value) for number, value in numbers.items()]
    more = struct.pack("<HHQQ", 700, 1, 1, 1) * min(tags - len(entries), 10_000)
    return b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, tags) + b"".join(entries) + more + bytes(SIDE * SIDE)


# JPEG: segments, then scans.


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(content)) + content


def jpeg_with(*segments: bytes) -> bytes:
    content = saved("JPEG")
    return content[:2] + b"".join(segments) + content[2:]


def jpeg_of_size(width: int, height: int) -> bytes:
    content = saved("JPEG")
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", height, width) + content[at + 4 :]


def jpeg_of_scans(scans: int) -> bytes:
    """A progressive picture whose last scan comes so often; each goes over the whole picture."""
    content = saved("JPEG", progressive=True)
    last = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + last * scans + b"\xff\xd9"


def exif_in_pieces(content: bytes, size: int) -> list[bytes]:
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    return [segment(0xE1, b"Exif\0\0" + piece) for piece in pieces]


# WebP and BMP: a size in the header.


def riff(name: bytes, content: bytes, *more: bytes) -> bytes:
    body = b"WEBP" + name + struct.pack("<I", len(content)) + content + b"".join(more)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def vp8(side: int) -> bytes:
    return riff(b"VP8 ", b"\x10\x32\0\x9d\x01\x2a" + struct.pack("<HH", side, side) + bytes(200))


def vp8l(side: int) -> bytes:
    return riff(b"VP8L", b"\x2f" + struct.pack("<I", (side - 1) | (side - 1) << 14) + bytes(100))


def vp8x(side: int, *, animated: bool) -> bytes:
    canvas = struct.pack("<I", side - 1)[:3] * 2
    frame = saved("WebP", lossless=True)[12:]
    if animated:
        place = bytes(6) + struct.pack("<I", SIDE - 1)[:3] * 2 + bytes(4)
        frame = b"ANMF" + struct.pack("<I", len(place + frame)) + place + frame
        frame = b"ANIM" + struct.pack("<I", 6) + bytes(6) + frame * 1000
    return riff(b"VP8X", bytes([2 * animated, 0, 0, 0]) + canvas, frame)


def bmp(width: int, height: int, *, rle: bool = False) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, int(rle), 0, 0, 0, 2, 0)
    return b"BM" + struct.pack("<IHHI", 100, 0, 0, 62) + header + bytes(8) + b"\xff\0" * 20 + b"\0\1"


TOO_LARGE: dict[str, Callable[[], bytes]] = {
    "PNG of 100,000 x 100,000": lambda: png(100_000, 100_000),
    "PNG just above the limit": lambda: png(MAX_PIXELS // 1000, 1001),
    "PNG of 2^31 x 2^31": lambda: png(2**31 - 1, 2**31 - 1),
    "PNG, long and thin": lambda: png(8, 1_000_000),
    "GIF with a huge screen": lambda: gif(65_535, SIDE),
    "GIF with a frame larger than the screen": lambda: gif(SIDE, 65_535),
    "GIF with a frame that only Pillow would take": lambda: gif(SIDE, 12_000),
    "TIFF of 100,000 x 100,000": lambda: tiff(*gray_tags(100_000, 100_000), (273, LONG, 1, 8)),
    "TIFF of 2^32 x 2^32": lambda: tiff(*gray_tags(2**32 - 1, 2**32 - 1), (273, LONG, 1, 8)),
    "packed TIFF of 12,000 x 12,000": lambda: tiff(*gray_tags(12_000, 12_000, 8), (273, LONG, 1, 8)),
    "BigTIFF of 100,000 x 100,000": lambda: big_tiff(100_000, 100_000, 8),
    "WebP, VP8": lambda: vp8(16_383),
    "WebP, VP8 that only Pillow would take": lambda: vp8(12_000),
    "WebP, VP8L": lambda: vp8l(16_384),
    "WebP, VP8X": lambda: vp8x(16_383, animated=False),
    "WebP, VP8X that only Pillow would take": lambda: vp8x(12_000, animated=False),
    "WebP, animated": lambda: vp8x(16_383, animated=True),
    "BMP of 2^31 x 2^31": lambda: bmp(2**31 - 1, 2**31 - 1),
    "BMP with a negative width": lambda: bmp(-20_000, 20_000),
    "BMP with a negative height": lambda: bmp(20_000, -20_000),
    "BMP, run lengths": lambda: bmp(20_000, 20_000, rle=True),
    "JPEG of 65,535 x 65,535": lambda: jpeg_of_size(65_535, 65_535),
    "JPEG that only Pillow would take": lambda: jpeg_of_size(12_000, 12_000),
}
MALFORMED: dict[str, Callable[[], bytes]] = {
    "AVIF of 30,000 x 30,000": lambda: with_box_size(saved("AVIF"), 30_000),
    "HEIC that is larger than it says": lambda: with_box_size(
        saved("HEIC", Image.new("L", (2000, 2000))), SIDE
    ),
    "GIF with comments in a million pieces": lambda: gif(SIDE, SIDE, b"!\xfe" + b"\x01a" * MIB + b"\0"),
    "GIF with too many extensions": lambda: gif(SIDE, SIDE, b"!\xff\x01a\0" * MAX_GIF_BLOCKS),
    "TIFF with 200,000 strips": lambda: tiff(
        *gray_tags(), (273, LONG, 200_000, None), (278, LONG, 1, 1), after=bytes(800_000)
    ),
    "TIFF with 200,000 strips, its directory cut short": lambda: tiff(
        *gray_tags(), (273, LONG, 200_000, 8), after=b""
    )[:-4].ljust(10, b"\0"),
    "TIFF with 200,000 bits per sample": lambda: tiff(
        *gray_tags()[:2], (258, SHORT, 200_000, None), after=bytes(400_000)
    ),
    "TIFF whose tags share their bytes": lambda: tiff_whose_tags_share(500, 200_000),
    "TIFF with too many tags": lambda: tiff_page(
        *((n, LONG, 1, 0) for n in range(1000, 1001 + MAX_TIFF_TAGS))
    ),
    "TIFF with a large tile of deflate": lambda: tiff_tiles(20_000, 8),
    "TIFF with a large tile of LZW": lambda: tiff_tiles(20_000, 5),
    "TIFF with a tile of an odd type": lambda: tiff(*gray_tags(), (322, 16, 1, None), after=bytes(100)),
    "BigTIFF with 2^40 tags": lambda: big_tiff(SIDE, SIDE, 2**40),
    "JPEG with too many scans": lambda: jpeg_of_scans(MAX_SCANS),
    "JPEG with 100,000 scans": lambda: jpeg_of_scans(100_000),
}
BOMBS = TOO_LARGE | MALFORMED

# Beside a good picture there is what must not be looked at.
DUDS: dict[str, Callable[[], bytes]] = {
    "PNG with 100 MiB of compressed text": lambda: png_with(chunk(b"zTXt", b"a\0\0" + zeros(100 * MIB))),
    "PNG with 60 texts of 1 MiB": lambda: png_with(
        *(chunk(b"zTXt", b"a%d\0\0" % n + zeros(MIB - 10)) for n in range(60))
    ),
    "PNG with international text": lambda: png_with(chunk(b"iTXt", b"a\0\1\0\0\0" + zeros(MIB))),
    "PNG with a color profile of 100 MiB": lambda: png_with(chunk(b"iCCP", b"a\0\0" + zeros(100 * MIB))),
    "PNG with 100,000 private chunks": lambda: png_with(chunk(b"prVt", b"") * 100_000),
    "PNG with EXIF of 2 million values": lambda: png_with(
        chunk(b"eXIf", tiff((0x0112, SHORT, 2_000_000, None), after=bytes(4_000_000)))
    ),
    "PNG with text behind its pixels": lambda: saved("PNG") + chunk(b"zTXt", b"a\0\0" + zeros(MIB)),
    "PNG with 5000 broken frames": lambda: apng(5000),
    "GIF with 5000 broken frames": lambda: animated_gif(5000),
    "TIFF with directories in a loop": lambda: tiff_page(next_offset=8),
    "TIFF with a huge second page": lambda: tiff_page(
        next_offset=len(tiff_page()), after=tiff(*gray_tags(100_000, 100_000))[8:]
    ),
    "TIFF with EXIF of 500,000 values": lambda: tiff_with_nested_exif(500_000),
    "JPEG with EXIF in 100,000 pieces": lambda: jpeg_with(*exif_in_pieces(bytes(600_000), 6)),
    "JPEG with EXIF of a million values": lambda: jpeg_with(
        *exif_in_pieces(tiff((0x011A, RATIONAL, MIB // 4, None), after=bytes(2 * MIB)), 65_000)
    ),
    "JPEG with 100,000 comments": lambda: jpeg_with(*[segment(0xFE, b"")] * 100_000),
    "WebP with EXIF of 2 million values": lambda: saved(
        "WebP", lossless=True, exif=tiff((0x0112, SHORT, 2_000_000, None), after=bytes(4_000_000))
    ),
}
