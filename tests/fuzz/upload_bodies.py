"""Bodies of uploads, well-formed and not: multipart, .npy files and the JSON of /reconstruct."""

import base64
import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.mutations import Draw, altered, damaged, mostly

Body = tuple[str, bytes]  # content type, content

BOUNDARIES = ("x", "-" * 30 + "7f3a", "a" * 70, "with space", "b'()+_,-./:=?")
ODD_TYPES = (
    "multipart/form-data",
    "multipart/form-data; boundary=",
    "multipart/form-data; boundary=another",
    "multipart/form-data; charset=nonsense; boundary={}",
    "multipart/mixed; boundary={}",
    'MULTIPART/FORM-DATA; BOUNDARY="{}"',
)
ODD_NAMES = ("image", "images", "label", "sweep", "version", "", "x" * 3000, 'a"b', "ä\x00")
ODD_FILENAMES = (
    *("", "ä中\U0001f600.png", "../../etc/passwd", "a\x00b", "\x1b[31m", "x" * 5000, "percent%0d%0a.png"),
    *('quote".png', "back\\slash.png", "semi;colon.png", "line\nbreak", "\"; filename*=utf-8''x; y=\""),
)
ODD_HEADERS = (
    *("Content-Type: image/png", "Content-Type: multipart/mixed; boundary=y", "Content-Length: -1"),
    *("Content-Transfer-Encoding: base64", "X: " + "y" * 9000, "no colon", ": no name", "\xff\xfe: \x00"),
    *('Content-Disposition: form-data; name="images"', "Content-Disposition: attachment"),
)
ODD_DTYPES = ("<f2", "<f8", "<i4", "<c8", "|b1", "|S3", "<U2", "<M8[s]", "|O", "|V4", "nonsense")
SHAPES = ((1, 28, 28), (2, 28, 28, 1), (1, 28, 28, 2), (1, 28, 28, 3))
ODD_SHAPES = (
    *((28, 28), (9, 28, 28), (0, 28, 28), (1, 28, 29), (), (1,) * 40),
    *((-1, 28, 28), (2**62, 28, 28), (10**30,), (1.5,), "nonsense"),
)

DIMENSIONS = st.sampled_from([0, 1, 2, 3] * 4 + [-1, 4])


@st.composite
def forms(draw: Draw, field: str, files: st.SearchStrategy[bytes]) -> Body:
    """A form with files in the field, and what a sender may have got wrong here and there."""
    boundary = draw(st.sampled_from(BOUNDARIES))
    parts = [_part(draw, field, draw(files), boundary) for _ in range(mostly(draw, 1, [2, 3, 9]))]
    line = b"\r\n--" + boundary.encode()
    start = mostly(draw, b"", [b"a preamble", b"\r\n\r\n"])
    end = mostly(draw, b"--\r\n", [b"--", b"", b"\r\n", b"--\r\nan epilogue"])
    content = (start + b"".join(line + part for part in parts) + line + end).removeprefix(b"\r\n")
    if mostly(draw, False, [True]):
        content = draw(damaged(content))
    return mostly(draw, 'multipart/form-data; boundary="{}"', ODD_TYPES).format(boundary), content


def _part(draw: Draw, field: str, content: bytes, boundary: str) -> bytes:
    name, filename = mostly(draw, field, ODD_NAMES), mostly(draw, "7.png", ODD_FILENAMES)
    disposition = f'Content-Disposition: form-data; name="{name}"'
    if mostly(draw, True, [False]):
        disposition += f'; filename="{filename}"'
    lines = [mostly(draw, disposition, ["Content-Disposition", "X: y"])]
    lines += mostly(draw, [], [[header] for header in ODD_HEADERS])
    inner = mostly(draw, b"", [f"\r\n--{boundary}\r\n".encode()])
    return b"\r\n" + "\r\n".join([*lines, "", ""]).encode() + inner + content


@st.composite
def array_files(draw: Draw) -> bytes:
    """A .npy file whose header and values need not have met before."""
    dtype = mostly(draw, draw(st.sampled_from(["|u1", "<f4", ">f4"])), ODD_DTYPES)
    shape = mostly(draw, draw(st.sampled_from(SHAPES)), ODD_SHAPES)
    order = mostly(draw, draw(st.booleans()), [None, 1])
    header = repr({"descr": dtype, "fortran_order": order, "shape": shape}).encode() + b" \n"
    version = mostly(draw, b"\1\0", [b"\2\0", b"\3\0", b"\0\0", b"\xff\xff"])
    length = len(header).to_bytes(2 if version == b"\1\0" else 4, "little")
    content = b"\x93NUMPY" + version + length + header + _values(draw, dtype, shape)
    return draw(st.just(content) | damaged(content))


def _values(draw: Draw, dtype: str, shape: Any) -> bytes:
    """As many values as the shape takes, if it is one; mostly in range."""
    is_real = shape != "nonsense" and all(isinstance(size, int) and 0 <= size < 100 for size in shape)
    count = int(np.prod(shape)) if is_real else 784
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype.endswith("f4"):
        low, high = mostly(draw, (0, 1), [(-1, 1), (0, np.inf), (np.nan, np.nan), (0, 1e38)])
        with np.errstate(invalid="ignore", over="ignore"):
            return (low + chance.random(count) * (high - low)).astype(dtype).tobytes()
    return b"\x80\x05N." if dtype in {"|O", "nonsense"} else chance.bytes(count * np.dtype(dtype).itemsize)


@st.composite
def reconstructions(draw: Draw, files: st.SearchStrategy[bytes]) -> bytes:
    """The JSON of a /reconstruct body, as it should be or altered."""
    numbers = st.floats(-1, 1) | st.sampled_from([0.0, 0.25, 1e6, -1e6, 1e-6])
    fields: dict[str, Any] = {"pose": draw(st.lists(numbers, min_size=4, max_size=4)), "label": "1"}
    if draw(st.booleans()):
        views = [base64.b64encode(draw(files)).decode() for _ in range(mostly(draw, 1, [2, 2, 3]))]
        fields = {"image": views if len(views) > 1 else views[0]}
    what = draw(st.sampled_from(["plain", "perturbations", "sweep"]))
    if what == "perturbations":
        dimensions = draw(st.lists(DIMENSIONS, max_size=4))
        fields[what] = [{"dimension": dimension, "delta": draw(numbers)} for dimension in dimensions]
    if what == "sweep":
        fields[what] = {"dimensions": draw(st.lists(DIMENSIONS, max_size=4))}
        fields[what] |= draw(st.dictionaries(st.sampled_from(["start", "stop", "step"]), numbers))
    content = json.dumps(draw(altered(fields)) if draw(st.booleans()) else fields).encode()
    return draw(damaged(content)) if mostly(draw, False, [True]) else content
