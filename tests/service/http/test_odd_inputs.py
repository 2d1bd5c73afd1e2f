"""Inputs as odd as strangers send them: each gets the right answer, or an error that says what is wrong.

The pictures show one digit, a seven, in every kind of file that can hold it; the shipped `capsnet-digits`
must read it in each.
"""

from collections.abc import Callable, Iterator

import httpx
import numpy as np
import pillow_heif
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.support.live_service import live_service, settings_for
from tests.support.paths import ROOT
from tests.support.raw_http import connected
from tests.support.small_pictures import saved, to_npy
from training.data.datasets import load_split

pillow_heif.register_heif_opener()  # it also writes HEIC

SEVEN = ROOT / "docs" / "seven.jpg"
Gray = NDArray[np.uint8]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with live_service(settings_for(ROOT / "models", optimize=False)) as client:
        yield client


@pytest.fixture(scope="module")
def photograph() -> Gray:
    """A seven, dark on light, [300, 270]: of the photograph in the docs the part around the digit."""
    return np.asarray(Image.open(SEVEN).convert("L").crop((700, 430, 1195, 980)).resize((270, 300)))


@pytest.fixture(scope="module")
def digit() -> Gray:
    """A seven as in the data set: light on dark, [28, 28]."""
    drawn = load_split("drawn", "test", ROOT)
    return drawn.images[drawn.labels == 7][0, ..., 0]


def rgba(gray: Gray) -> Image.Image:
    return Image.fromarray(np.dstack([gray, gray, gray, np.full_like(gray, 255)]))


def stencil(gray: Gray) -> Image.Image:
    """Black ink on a transparent sheet."""
    alpha = np.where(gray < 128, 255, 0).astype(np.uint8)
    return Image.fromarray(np.dstack([np.zeros_like(gray)] * 3 + [alpha]))


def scaled(gray: Gray, levels: int, kind: type) -> NDArray:
    """The same picture with this many gray levels, of another type of number."""
    return (gray.astype(np.float64) / 255 * levels).astype(kind)


def png16(numbers: NDArray) -> bytes:
    return saved(Image.fromarray(numbers.astype(np.uint16)), "PNG")


def tiff(numbers: NDArray) -> bytes:
    return saved(Image.fromarray(numbers), "TIFF")


def with_no_data(numbers: NDArray) -> NDArray:
    marked = numbers.copy()
    marked[0, 0] = -3.4e38
    return marked


Maker = Callable[[Gray], bytes]
FILES: dict[str, Maker] = {
    "PNG, gray": lambda gray: saved(Image.fromarray(gray), "PNG"),
    "PNG, RGB": lambda gray: saved(Image.fromarray(gray).convert("RGB"), "PNG"),
    "PNG, RGBA": lambda gray: saved(rgba(gray), "PNG"),
    "PNG, gray and alpha": lambda gray: saved(rgba(gray).convert("LA"), "PNG"),
    "PNG, palette": lambda gray: saved(Image.fromarray(gray).convert("RGB").quantize(16), "PNG"),
    "PNG, two levels": lambda gray: saved(Image.fromarray(gray).convert("1", dither=0), "PNG"),
    "PNG, interlaced": lambda gray: saved(Image.fromarray(gray), "PNG", interlace=1),
    "JPEG, gray": lambda gray: saved(Image.fromarray(gray), "JPEG"),
    "JPEG, progressive": lambda gray: saved(Image.fromarray(gray).convert("RGB"), "JPEG", progressive=True),
    "JPEG, CMYK": lambda gray: saved(Image.fromarray(gray).convert("CMYK"), "JPEG"),
    "JPEG, YCbCr, quality 30": lambda gray: saved(Image.fromarray(gray).convert("YCbCr"), "JPEG", quality=30),
    "WebP": lambda gray: saved(Image.fromarray(gray).convert("RGB"), "WEBP"),
    "WebP, lossless, alpha": lambda gray: saved(rgba(gray), "WEBP", lossless=True),
    "AVIF": lambda gray: saved(Image.fromarray(gray).convert("RGB"), "AVIF", quality=90),
    "HEIC": lambda gray: saved(Image.fromarray(gray).convert("RGB"), "HEIF", quality=90),
    "BMP": lambda gray: saved(Image.fromarray(gray), "BMP"),
    "BMP, two levels": lambda gray: saved(Image.fromarray(gray).convert("1", dither=0), "BMP"),
    "GIF": lambda gray: saved(Image.fromarray(gray), "GIF"),
    "TIFF": lambda gray: saved(Image.fromarray(gray), "TIFF"),
    "TIFF, LZW": lambda gray: saved(Image.fromarray(gray), "TIFF", compression="tiff_lzw"),
    "TIFF, CMYK": lambda gray: saved(Image.fromarray(gray).convert("CMYK"), "TIFF"),
    "TIFF, LAB": lambda gray: saved(
        Image.merge("LAB", [Image.fromarray(gray), *[Image.new("L", gray.shape[::-1], 128)] * 2]), "TIFF"
    ),
    "16-bit PNG, 8 bits used": lambda gray: png16(scaled(gray, 2**8 - 1, np.uint16)),
    "16-bit PNG, 10 bits used": lambda gray: png16(scaled(gray, 2**10 - 1, np.uint16)),
    "16-bit PNG, 12 bits used": lambda gray: png16(scaled(gray, 2**12 - 1, np.uint16)),
    "16-bit PNG, 16 bits used": lambda gray: png16(scaled(gray, 2**16 - 1, np.uint16)),
    "int32 TIFF, 0 to 255": lambda gray: tiff(gray.astype(np.int32)),
    "int32 TIFF, 0 to 4095": lambda gray: tiff(scaled(gray, 4095, np.int32)),
    "int32 TIFF, 0 to 65535": lambda gray: tiff(scaled(gray, 65535, np.int32)),
    "int32 TIFF, -1000 to 1000": lambda gray: tiff(scaled(gray, 2000, np.int32) - 1000),
    "float TIFF, 0 to 1": lambda gray: tiff(scaled(gray, 1, np.float32)),
    "float TIFF, 0 to 255": lambda gray: tiff(scaled(gray, 255, np.float32)),
    "float TIFF, -1 to 1": lambda gray: tiff(scaled(gray, 2, np.float32) - 1),
    "float TIFF, one pixel without data": lambda gray: tiff(with_no_data(scaled(gray, 1, np.float32))),
}
TWO_KINDS = ("AVIF", "int32 TIFF, 0 to 4095")  # for claims to which the kind of file makes no difference


def labels(client: httpx.Client, content: bytes, query: str = "") -> list[str]:
    answer = client.post(f"/classify{query}", content=content)
    assert answer.status_code == 200, answer.text
    return [result["label"] for result in answer.json()["results"]]


@pytest.mark.parametrize("kind", FILES)
def test_a_photograph_of_a_seven_is_a_seven_in_every_kind_of_file(client, photograph, kind):
    assert labels(client, FILES[kind](photograph)) == ["7"]


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_photograph_is_read_light_on_dark_too(client, photograph, kind):
    assert labels(client, FILES[kind](255 - photograph)) == ["7"]


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_digit_of_the_data_set_is_read(client, digit, kind):
    assert labels(client, FILES[kind](digit)) == ["7"]


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_digit_of_the_data_sets_size_is_read_dark_on_light_too(client, digit, kind):
    assert labels(client, FILES[kind](255 - digit)) == ["7"]


@pytest.mark.parametrize("route", ["/reconstruct", "/segment"])
@pytest.mark.parametrize("kind", TWO_KINDS)
def test_every_other_route_reads_the_same_files(client, photograph, kind, route):
    name = "image" if route == "/reconstruct" else "images"
    answer = client.post(route, files={name: FILES[kind](photograph)})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    first = found if route == "/reconstruct" else found["results"][0]["objects"][0]
    assert first["label"] == "7"


def test_ink_on_a_transparent_sheet_is_seen(client, photograph):
    for kind in ("PNG", "WEBP"):
        assert labels(client, saved(stencil(photograph), kind)) == ["7"]


@pytest.mark.parametrize(("side", "kind"), [(29, "PNG"), (128, "WEBP"), (2500, "JPEG")])
def test_a_photograph_is_read_at_every_size(client, photograph, side, kind):
    picture = Image.fromarray(photograph).resize((side, side * 10 // 9))
    assert labels(client, saved(picture, kind)) == ["7"]


@pytest.mark.parametrize("where", [(0.02, 0.02), (0.6, 0.1), (0.1, 0.6), (0.6, 0.6)])
def test_a_small_digit_in_a_corner_is_found(client, photograph, where):
    sheet = np.full((800, 800), int(np.percentile(photograph, 90)), np.uint8)
    small = np.asarray(Image.fromarray(photograph).resize((180, 200)))
    row, column = (int(share * 800) for share in where)
    sheet[row : row + 200, column : column + 180] = np.minimum(small, sheet[0, 0])
    assert labels(client, saved(Image.fromarray(sheet), "PNG")) == ["7"]


@pytest.mark.parametrize("kind", TWO_KINDS)
def test_a_file_cut_short_is_refused_as_such(client, photograph, kind):
    whole = FILES[kind](photograph)
    answer = client.post("/classify", content=whole[: len(whole) // 2])
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unreadable-picture")


ARRAYS: dict[str, Callable[[Gray], NDArray]] = {
    "uint8": lambda digit: digit[None],
    "uint8, channel": lambda digit: digit[None, :, :, None],
    "float32": lambda digit: (digit / 255).astype(np.float32)[None],
    "Fortran order": lambda digit: np.asfortranarray(digit[None]),
    "two of them": lambda digit: np.stack([digit, digit]),
}
WRONG_HEADERS = {
    "an endless shape": b"(" + b"1," * 2000 + b")",
    "a huge shape": b"(99999999999, 28, 28)",
    "a shape that calls": b"(__import__('os').getpid(), 28, 28)",
}


def as_array(client: httpx.Client, content: bytes) -> httpx.Response:
    return client.post("/classify", content=content, headers={"Content-Type": "application/x-npy"})


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_is_read_whatever_its_form(client, digit, kind):
    answer = as_array(client, to_npy(ARRAYS[kind](digit)))
    assert answer.status_code == 200, answer.text
    assert {result["label"] for result in answer.json()["results"]} == {"7"}


@pytest.mark.parametrize("kind", WRONG_HEADERS)
def test_an_array_whose_header_lies_is_refused(client, kind):
    entries = b"{'descr': '|u1', 'fortran_order': False, 'shape': %s, }" % WRONG_HEADERS[kind]
    header = entries.ljust(118 if len(entries) < 118 else len(entries)) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(784)
    answer = as_array(client, content)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/wrong-array")


def form(filename: bytes, picture: bytes) -> tuple[bytes, dict[str, str]]:
    body = b'--x\r\nContent-Disposition: form-data; name="images"; filename="%s"\r\n\r\n%s\r\n--x--\r\n'
    return body % (filename, picture), {"Content-Type": "multipart/form-data; boundary=x"}


NAMES = [b"", b"=1+1.png", b"../../etc/passwd", b"a\\b.png", b"\xff\xfe.png", b"x" * 3000, b"%00.png"]


@pytest.mark.parametrize("filename", NAMES)
def test_any_name_of_a_file_comes_back_or_is_refused(client, photograph, filename):
    body, headers = form(filename, FILES["PNG, gray"](photograph))
    answer = client.post("/classify", content=body, headers=headers)
    assert answer.status_code in {200, 400, 422}, answer.text
    if answer.status_code == 200:
        assert answer.json()["results"][0]["label"] == "7"


POST = b"POST /classify HTTP/1.1\r\nHost: a\r\n"
HEADS = {
    "an empty host": (b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", 200),
    "absolute target": (b"GET http://a/healthz HTTP/1.1\r\nHost: a\r\n\r\n", 200),
    "absolute target without a path": (b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "h2c, HTTP/1.0": (b"GET /healthz HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 200),
    "websocket, close": (POST + b"Connection: close\r\nUpgrade: websocket\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    "a space in the target": (b"GET /health z HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "HTTP/3.7": (b"GET /healthz HTTP/3.7\r\nHost: a\r\n\r\n", 400),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_as_odd_as_this_is_answered_at_once(client, kind):
    sent, status = HEADS[kind]
    with connected(client) as connection:
        connection.sendall(sent)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
