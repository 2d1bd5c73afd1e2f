"""Small files that would become large pictures, or keep Pillow busy for hours: refused before they do."""

import io
import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from export.contract.headers import without_metadata
from export.contract.pictures import FORMATS, PictureError, PictureSizeError, read_picture
from tests.support.decompression_bombs import (
    BOMBS,
    DUDS,
    MALFORMED,
    MAX_PIXELS,
    MIB,
    SIDE,
    TOO_LARGE,
    saved,
    tiff_page,
)
from tests.support.live_service import live_service, settings_for
from tests.support.paths import ROOT
from tests.support.tiny_bundle import write_bundle

MEMORY_BYTES = 48 * MIB  # beyond what the process has when it begins; a decoded bomb has 50 to 40,000 MiB

# Names of the functions in which Pillow and zlib take memory for pixels, and make them.
DECODING = frozenset({"new", "fill", "decode", "decompress", "WebPAnimDecoder", "get_next"})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    with live_service(settings_for(root)) as client:
        yield client


def functions_called(work: Callable[[], object]) -> Counter[str]:
    """How often each function of C was called meanwhile, by its name."""
    called: Counter[str] = Counter()

    def watch(_frame: object, event: str, function: object) -> None:
        if event == "c_call" and not isinstance(
            getattr(function, "__self__", None), bytes
        ):  # text's `decode`
            called[getattr(function, "__name__", "")] += 1

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return called


def refusal(content: bytes) -> PictureError:
    with pytest.raises(PictureError) as caught:
        read_picture(content, MAX_PIXELS)
    return caught.value


@pytest.mark.parametrize("name", FORMATS)
def test_decoding_is_seen_where_there_is_some(name):
    content = saved(name)
    assert functions_called(lambda: read_picture(content, MAX_PIXELS)).keys() & DECODING


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_anything_is_decoded(name):
    content = BOMBS[name]()
    errors: list[PictureError] = []
    called = functions_called(lambda: errors.append(refusal(content)))
    assert isinstance(errors[0], PictureSizeError) == (name in TOO_LARGE)
    assert not called.keys() & DECODING


@pytest.mark.filterwarnings("ignore:Tag data larger than file")
@pytest.mark.parametrize("name", DUDS)
def test_what_is_beside_the_picture_is_not_unpacked(name):
    content = DUDS[name]()
    shown: list[Image.Image] = []
    called = functions_called(lambda: shown.append(read_picture(content, MAX_PIXELS)))
    image_format = name.split()[0]
    expected = tiff_page() if image_format == "TIFF" else saved(image_format, lossless=True)
    assert shown[0].tobytes() == read_picture(expected, MAX_PIXELS).tobytes()
    assert called["decompress"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_all_bombs_together_are_read_in_little_memory():
    command = [
        sys.executable,
        "-c",
        "from tests.export.contract import test_bombs; test_bombs.read_all_in_little_memory()",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)
    expected = dict.fromkeys(TOO_LARGE, "PictureSizeError") | dict.fromkeys(MALFORMED, "PictureError")
    assert verdicts == expected | dict.fromkeys(DUDS, "read")


def read_all_in_little_memory() -> None:
    """Runs in a process of its own: memory beyond the limit is not to be had there."""
    for image_format in FORMATS:
        read_picture(saved(image_format), MAX_PIXELS)  # loads what it needs
    files = {name: make() for name, make in (BOMBS | DUDS).items()}
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    with pytest.raises(MemoryError):
        bytearray(2 * MEMORY_BYTES)
    sys.stdout.write(json.dumps({name: verdict(content) for name, content in files.items()}))


def verdict(content: bytes) -> str:
    try:
        read_picture(content, MAX_PIXELS)
    except PictureError as error:
        return type(error).__name__ if "MemoryError" not in repr(error.__cause__) else "memory"
    return "read"


@pytest.mark.parametrize(
    ("name", "status", "slug"),
    [
        ("JPEG of 65,535 x 65,535", 413, "picture-too-large"),
        ("TIFF with too many tags", 422, "unreadable-picture"),
    ],
)
def test_a_client_is_told_what_is_wrong_with_its_bomb(client, name, status, slug):
    answer = client.post("/classify", content=BOMBS[name]())
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{slug}")


def test_of_an_animated_webp_the_first_frame_alone_is_decoded():
    frames = [Image.new("L", (SIDE, SIDE), level) for level in range(0, 250, 5)]
    content = saved("WebP", frames[10], save_all=True, append_images=frames, lossless=True)
    shown: list[Image.Image] = []
    called = functions_called(lambda: shown.append(read_picture(content, MAX_PIXELS)))
    assert shown[0].convert("L").getextrema() == (50, 50)
    assert called["get_next"] == 1


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WebP"])
def test_a_picture_whose_exif_cannot_be_read_is_upright(image_format):
    content = saved(image_format, Image.new("L", (60, 30), 200), exif=b"Exif\0\0no TIFF file at all")
    assert read_picture(content, MAX_PIXELS).size == (60, 30)


MODES = {
    "PNG": ("1", "L", "P", "RGB", "RGBA", "LA", "I;16"),
    "JPEG": ("1", "L", "RGB", "CMYK", "YCbCr"),
    "TIFF": ("1", "L", "P", "RGB", "RGBA", "LA", "I;16", "CMYK", "YCbCr"),
}


@pytest.mark.parametrize(("image_format", "mode"), [(name, mode) for name in MODES for mode in MODES[name]])
def test_leaving_metadata_out_changes_no_pixel(image_format, mode):
    levels = np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    shown = Image.fromarray(levels[:, :, 0].astype(np.uint16) * 200) if mode == "I;16" else None
    shown = shown or Image.fromarray(levels).convert("RGB" if mode == "LA" else mode)
    content = saved(image_format, shown.convert("LA") if mode == "LA" else shown, icc_profile=b"x" * 500)
    kept = without_metadata(image_format, content)
    before, after = (Image.open(io.BytesIO(file)) for file in (content, kept))
    assert before.mode == after.mode
    assert before.tobytes() == after.tobytes()


def test_a_progressive_jpeg_of_the_usual_scans_is_read():
    shown = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8))
    content = saved("JPEG", shown, progressive=True)
    assert read_picture(content, MAX_PIXELS).tobytes() == Image.open(io.BytesIO(content)).tobytes()


def test_what_is_appended_to_a_jpeg_is_no_scan():
    video = np.random.default_rng(0).bytes(100_000) + b"\xff\xda" * 1000
    assert read_picture(saved("JPEG") + video, MAX_PIXELS).size == (SIDE, SIDE)
