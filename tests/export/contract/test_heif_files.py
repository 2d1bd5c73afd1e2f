"""AVIF and HEIC: what is read, how it was held, and what is refused."""

import io
import struct
import sys

import numpy as np
import pillow_heif  # which also writes HEIC
import pytest
from PIL import Image

from export.contract.heif_files import format_of_boxes
from export.contract.pictures import PictureError, PictureFormatError, PictureSizeError, read_picture
from tests.support import small_pictures

pillow_heif.register_heif_opener()

MAX_PIXELS = 1_000_000
FORMATS = ("AVIF", "HEIF")
WIDTH, HEIGHT = 64, 48


def half_light() -> Image.Image:
    """Light above, dark below."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[: HEIGHT // 2] = 240
    return Image.fromarray(pixels)


def saved(kind: str, picture: Image.Image | None = None, **options: object) -> bytes:
    return small_pictures.saved(picture or half_light(), kind, **options)


def corners(picture: Image.Image) -> list[bool]:
    """Whether each corner is light: top left, top right, bottom left, bottom right."""
    gray = np.asarray(picture.convert("L"))
    return [bool(gray[row, column] > 128) for row in (2, -3) for column in (2, -3)]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_picture_is_read_as_it_was(kind):
    read = read_picture(saved(kind), MAX_PIXELS)
    assert (read.size, read.mode) == ((WIDTH, HEIGHT), "RGB")
    assert corners(read) == [True, True, False, False]
    close = np.abs(np.asarray(read, float) - np.asarray(half_light(), float))
    assert close.mean() < 5


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("orientation", "size", "light"),
    [
        (3, (WIDTH, HEIGHT), [False, False, True, True]),
        (6, (HEIGHT, WIDTH), [False, True, False, True]),
        (8, (HEIGHT, WIDTH), [True, False, True, False]),
    ],
)
def test_a_camera_that_was_held_in_another_way_is_undone_once(kind, orientation, size, light):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = half_light()
    picture.info["exif"] = exif.tobytes()  # of which pillow-heif makes a box
    options = {"exif": exif} if kind == "AVIF" else {}  # of which Pillow does
    read = read_picture(saved(kind, picture, **options), MAX_PIXELS)
    assert read.size == size
    assert corners(read) == light


@pytest.mark.parametrize("kind", FORMATS)
def test_a_transparent_drawing_gets_a_ground(kind):
    drawing = Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 0, 0))
    drawing.paste((10, 10, 10, 255), (20, 10, 40, 30))
    read = read_picture(saved(kind, drawing), MAX_PIXELS)
    assert read.mode == "RGB"
    assert corners(read) == [True] * 4


def test_ten_bits_become_eight():
    deep = np.full((HEIGHT, WIDTH, 3), 40_000, np.uint16)
    made = pillow_heif.from_bytes("RGB;16", (WIDTH, HEIGHT), deep.tobytes())
    read = np.asarray(read_picture(small_pictures.saved(made, "HEIF"), MAX_PIXELS))
    assert abs(read.mean() - 40_000 / 257) < 3


def test_of_several_frames_the_first_is_read():
    frames = [Image.new("RGB", (WIDTH, HEIGHT), color) for color in ("white", "black", "black")]
    read = read_picture(saved("AVIF", frames[0], save_all=True, append_images=frames[1:]), MAX_PIXELS)
    assert corners(read) == [True] * 4


def test_of_several_pictures_the_primary_one_is_read():
    file = pillow_heif.from_pillow(Image.new("RGB", (WIDTH, HEIGHT), "black"))
    file.add_from_pillow(Image.new("RGB", (WIDTH, HEIGHT), "white"))
    content = io.BytesIO()
    file.save(content, primary_index=1)
    assert corners(read_picture(content.getvalue(), MAX_PIXELS)) == [True] * 4


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_too_large_by_its_header_is_not_decoded(kind, monkeypatch):
    content = saved(kind)
    counted: list[int] = []
    with pytest.raises(PictureSizeError, match=r"picture is 64x48, .*at most 3071 "):
        read_picture(content, WIDTH * HEIGHT - 1, counted.append)
    assert counted == []
    read_picture(content, WIDTH * HEIGHT, counted.append)
    assert counted == [WIDTH * HEIGHT]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_short_is_refused(kind):
    content = saved(kind)
    for length in range(12, len(content) - 1, 7):
        with pytest.raises(PictureError):
            read_picture(content[:length], MAX_PIXELS)


@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_bytes_give_a_picture_or_an_error(kind):
    content, generator = saved(kind), np.random.default_rng(0)
    outcomes = set()
    for _ in range(300):
        damaged = np.frombuffer(content, np.uint8).copy()
        places = generator.integers(0, len(damaged), generator.integers(1, 8))
        damaged[places] = generator.integers(0, 256, len(places))
        try:
            read = read_picture(damaged.tobytes(), MAX_PIXELS)
            assert read.mode in {"L", "RGB"}
            outcomes.add("picture")
        except PictureError:
            outcomes.add("error")
    assert outcomes == {"picture", "error"}


@pytest.mark.parametrize("kind", FORMATS)
def test_an_exif_block_with_many_tags_is_not_parsed(kind, recwarn):
    tags = b"".join(struct.pack("<HHII", tag, 5, 1000, 100) for tag in range(300, 60_300))
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 60_000) + tags + bytes(100_000)
    content = saved(kind, exif=exif)
    recwarn.clear()
    assert read_picture(content, MAX_PIXELS).size == (WIDTH, HEIGHT)
    assert not recwarn.list  # Pillow warns of each tag


def test_without_the_extra_a_heic_file_is_refused_and_the_extra_is_named(monkeypatch):
    content = saved("HEIF")
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    with pytest.raises(PictureFormatError, match=r"pip install -e '.\[heif\]'"):
        read_picture(content, MAX_PIXELS)


@pytest.mark.parametrize(
    ("brands", "expected"),
    [
        ([b"avif", b"mif1", b"miaf"], "AVIF"),
        ([b"mif1", b"avif"], "AVIF"),
        ([b"avis", b"msf1"], "AVIF"),
        ([b"heic", b"mif1"], "HEIF"),
        ([b"mif1", b"heic"], "HEIF"),
        ([b"mp42", b"isom"], None),
        ([b"qt  "], None),
    ],
)
def test_the_format_is_told_by_the_brands(brands, expected):
    major, *compatible = brands
    box = b"ftyp" + major + bytes(4) + b"".join(compatible)
    assert format_of_boxes(struct.pack(">I", 4 + len(box)) + box + bytes(100)) == expected
    assert format_of_boxes(box) is None
