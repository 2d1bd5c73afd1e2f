"""What an image file says of itself before its pixels, judged before Pillow opens it.

Pillow keeps all that it finds beside the pixels, and some of it costs thousands of times the bytes it takes:
compressed text, an EXIF block in a million pieces, a TIFF of one pixel in a million strips. Nothing here
looks at a pixel, and no size that a file claims is believed before memory is taken for it.
"""

import re
import struct

MAX_EXIF_BYTES = 65_536  # as much as one segment of a JPEG holds; more is no EXIF
MAX_GIF_BLOCKS = 65_536  # comments and the like before the first picture
MAX_SCANS = 64  # every one goes over the whole picture; encoders make about ten
MAX_TIFF_TAGS = 1024
MAX_TIFF_TILE_PIXELS = 4096  # of a side: a tile is unpacked whole, however little of it is in the picture
MAX_TIFF_VALUES = 131_072  # of one tag that is no bytes: twice the rows of the tallest picture

# Of a PNG, what its first picture needs, and how it was held; not text, profiles, other frames.
PNG_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf"})
PNG_CHUNK = struct.Struct(">I4s")  # of how many bytes, its name; 4 bytes of checksum follow the content

# Of JPEG's markers (the byte behind 0xFF), those without a segment, and those with metadata.
JPEG_BARE = frozenset({0x01, 0xC8, 0xD8, *range(0xF0, 0xFE)})
JPEG_METADATA = frozenset({*range(0xE1, 0xEE), 0xEF, 0xFE})  # not APP0, JFIF, nor APP14, Adobe's colors
JPEG_EXIF, JPEG_SCAN, JPEG_END = 0xE1, 0xDA, 0xD9
JPEG_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # and none of those between the bytes of a scan

# The offset of the directory, the number of tags, and of each its number, type and how
# many values it has; the value, or its offset, follows.
TIFF_LAYOUT = {False: ("I", "H", "HHI"), True: ("Q", "Q", "HHQ")}
TIFF_TILE_SIDES = frozenset({322, 323})
TIFF_NUMBERS = {3: "H", 4: "I"}  # types of a size
TIFF_BYTES = frozenset({1, 2, 7})  # types that stay bytes; a value of any other becomes an object
TIFF_VALUE_BYTES = dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4), start=1)) | {16: 8, 17: 8, 18: 8}


class HeaderError(ValueError):
    """A header that no picture needs; the message goes on where "the file" left off."""


def declared_size(image_format: str, content: bytes) -> tuple[int, int] | None:
    """Width and height from the header, where they are at a fixed place and Pillow allocates when opening."""
    if image_format == "PNG" and len(content) >= 24:
        width, height = struct.unpack_from(">II", content, 16)
        return width, height
    if image_format == "GIF" and len(content) >= 10:
        width, height = struct.unpack_from("<HH", content, 6)
        return width, height
    if image_format == "WEBP" and len(content) >= 30:
        return _webp_size(content)
    return None


def without_metadata(image_format: str, content: bytes) -> bytes:
    """The file without what is not shown, as far as Pillow would keep or unpack it.

    Raises:
        HeaderError: there is more in the file than a picture has.
    """
    if image_format == "PNG":
        return _png_without_metadata(content)
    if image_format == "JPEG":
        return _jpeg_without_metadata(content)
    if image_format == "GIF":
        _check_gif(content)
    if image_format == "TIFF":
        _check_tiff(content)
    return content


def _webp_size(content: bytes) -> tuple[int, int] | None:
    kind = content[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(content[24:27], "little"), 1 + int.from_bytes(content[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _png_without_metadata(content: bytes) -> bytes:
    kept = [content[:8]]
    start = position = 8  # chunks in a row are kept together
    is_whole = True
    while position + 8 <= len(content):
        length, name = PNG_CHUNK.unpack_from(content, position)
        end = position + 12 + length
        if name not in PNG_CHUNKS or (name == b"eXIf" and length > MAX_EXIF_BYTES):
            kept += [content[start:position]] if start < position else []
            start, is_whole = end, False
        position = end
    return content if is_whole else b"".join([*kept, content[start:]])


def _jpeg_without_metadata(content: bytes) -> bytes:
    """The segments that decoding needs, and the first EXIF; the walk is Pillow's and libjpeg's."""
    kept = [content[:2]]
    start = position = 2
    scans, has_exif, is_whole = 0, False, True
    while found := JPEG_MARKER.search(content, position):
        here, marker = found.start(), content[found.start() + 1]
        if marker == JPEG_END:
            break
        if marker in JPEG_BARE:
            position = here + 2
            continue
        position = here + 2 + max(2, int.from_bytes(content[here + 2 : here + 4], "big"))
        is_exif = marker == JPEG_EXIF and content[here + 4 : here + 10] == b"Exif\0\0"
        if marker in JPEG_METADATA and (has_exif or not is_exif):
            kept += [content[start:here]] if start < here else []
            start, is_whole = position, False
        has_exif |= is_exif
        scans += marker == JPEG_SCAN
        if scans > MAX_SCANS:
            raise HeaderError(f"has more than {MAX_SCANS} scans")
    return content if is_whole else b"".join([*kept, content[start:]])


def _check_gif(content: bytes) -> None:
    """Count the blocks before the first picture."""
    position = 13 + _gif_palette_bytes(content[10:11])
    blocks = 0
    while content[position : position + 1] == b"!":
        position += 2
        while size := content[position : position + 1]:
            position += 1 + size[0]
            blocks += 1
            if blocks > MAX_GIF_BLOCKS:
                raise HeaderError(f"has more than {MAX_GIF_BLOCKS} blocks before its first picture")
            if size == b"\0":
                break


def _gif_palette_bytes(flags: bytes) -> int:
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0


def _check_tiff(content: bytes) -> None:
    """Look at the first directory, the only one that is read."""
    order = "<" if content[:2] == b"II" else ">"
    is_big = content[2] == 43  # as Pillow tells them apart
    offset, count, entry = (struct.Struct(order + kinds) for kinds in TIFF_LAYOUT[is_big])
    try:
        (position,) = offset.unpack_from(content, 8 if is_big else 4)
        (tags,) = count.unpack_from(content, position)
        if tags > MAX_TIFF_TAGS:
            raise HeaderError(f"has a directory of {tags} tags; at most {MAX_TIFF_TAGS} are read")
        position += count.size
        total_bytes = 0
        for _ in range(tags):
            tag, kind, values = entry.unpack_from(content, position)
            position += entry.size
            total_bytes += values * TIFF_VALUE_BYTES.get(kind, 0)
            if total_bytes > len(content):  # libtiff reads what several tags share once for each
                raise HeaderError(f"has tags of {total_bytes} bytes, more than the file")
            if values > MAX_TIFF_VALUES and kind not in TIFF_BYTES:
                raise HeaderError(f"has {values} values of tag {tag}; at most {MAX_TIFF_VALUES} are read")
            if tag in TIFF_TILE_SIDES:
                side = struct.unpack_from(order + TIFF_NUMBERS.get(kind, ""), content, position)
                if not side or side[0] > MAX_TIFF_TILE_PIXELS:
                    raise HeaderError(f"has larger tiles than {MAX_TIFF_TILE_PIXELS} pixels a side")
            position += offset.size
    except struct.error:  # it ends too early, as Pillow will say
        return
