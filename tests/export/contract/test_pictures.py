"""Pictures from strangers: whatever their size and depth, reading them takes bounded memory."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export.contract.pictures import LONG_SIDE_PIXELS, PictureSizeError, read_picture
from tests.support.decompression_bombs import chunk
from tests.support.small_pictures import saved

MAX_PIXELS = 50_000_000
GRAY, RGB, RGBA = 0, 2, 6  # PNG's color types
# Pillow holds RGB in four bytes a pixel, as RGBA; 16 bits in two.
READ = """
import resource, sys
from pathlib import Path
from export.contract.pictures import read_picture

def peak_kib():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

content = Path(sys.argv[1]).read_bytes()
before = peak_kib()
read_picture(content, 50_000_000)
print((peak_kib() - before) * 1024)
"""


def blank_png(width: int, height: int, color_type: int, bits: int) -> bytes:
    """Zeros, in a few kilobytes."""
    channels = {GRAY: 1, RGB: 3, RGBA: 4}[color_type]
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(1 + width * channels * bits // 8)) for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", rows + packer.flush()) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize(
    ("width", "height", "color_type", "bits", "bytes_per_pixel"),
    [(7071, 7071, RGBA, 8, 4), (65_535, 762, RGBA, 8, 4), (7071, 7071, GRAY, 16, 2)],
)
def test_the_largest_picture_takes_little_more_memory_than_its_pixels(
    tmp_path, width, height, color_type, bits, bytes_per_pixel
):
    (tmp_path / "a.png").write_bytes(blank_png(width, height, color_type, bits))
    command = [sys.executable, "-c", READ, str(tmp_path / "a.png")]
    peak_bytes = int(subprocess.run(command, check=True, capture_output=True).stdout)
    assert peak_bytes < width * height * bytes_per_pixel + 64 * 2**20


@pytest.mark.parametrize("size", [(8, 65_536), (65_536, 8)])
def test_a_side_longer_than_jpeg_allows_is_too_large(size):
    with pytest.raises(PictureSizeError, match="at most 65535"):
        read_picture(blank_png(*size, GRAY, 8), MAX_PIXELS)


def test_a_long_picture_is_shrunk_and_keeps_its_shape():
    content = blank_png(3 * LONG_SIDE_PIXELS, 600, GRAY, 8)
    assert read_picture(content, MAX_PIXELS).size == (LONG_SIDE_PIXELS, 200)


def test_a_very_long_picture_keeps_the_fewest_pixels_across():
    assert read_picture(blank_png(65_535, 20, GRAY, 8), MAX_PIXELS).size == (32_768, 10)


@pytest.mark.parametrize("mode", ["P", "RGB", "L"])
def test_a_transparent_color_is_transparent_in_every_strip(mode):
    page = Image.new("L", (2500, 2500), 0)
    page.paste(120, (100, 100, 1000, 2400))
    content = saved(page.convert(mode), "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0)
    shown = read_picture(content, MAX_PIXELS).convert("L")
    assert {shown.getpixel((10, y)) for y in range(1250)} == {255}
    assert {shown.getpixel((300, y)) for y in range(60, 1190)} == {120}


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "I;16"])
@pytest.mark.parametrize("size", [(2048, 2048), (2051, 3001)])
def test_shrinking_by_strips_shows_the_same_as_shrinking_at_once(mode, size):
    down = np.linspace(0, 255, size[1])[:, None]
    across = np.linspace(-40, 40, size[0])[None, :]
    levels = np.clip(down + across, 0, 255).astype(np.uint8)
    whole = Image.fromarray(levels)
    picture = Image.fromarray(levels.astype(np.uint16) * 257) if mode == "I;16" else whole.convert(mode)
    shown = read_picture(saved(picture, "PNG"), MAX_PIXELS).convert("L")
    expected = whole.reduce(2)
    assert shown.size == expected.size
    assert np.abs(np.asarray(shown, int) - np.asarray(expected, int)).max() <= 1


@pytest.mark.parametrize("level", [5.0, -3.0, 0.5])
def test_a_flat_picture_of_floats_is_read_and_flat(level):
    content = saved(Image.fromarray(np.full((20, 30), level, np.float32)), "TIFF")
    assert len(np.unique(np.asarray(read_picture(content, MAX_PIXELS)))) == 1


def test_floats_of_the_widest_range_are_scaled():
    widest = np.full((20, 30), -9e29, np.float32)  # what is larger stands for no data
    widest[5:10] = 9e29
    picture = read_picture(saved(Image.fromarray(widest), "TIFF"), MAX_PIXELS)
    assert set(np.unique(np.asarray(picture))) == {0, 255}
