"""Requests of the Open Inference Protocol: as they should be, or altered in any part."""

import gzip
import json
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.mutations import Draw, altered, damaged

HEADER_LENGTH = "Inference-Header-Content-Length"
INPUTS = {
    "tiny": {"pixels": (28, 28, 1)},
    "color": {"pixels": (28, 28, 3)},
    "tiny-decoder": {"poses": (3, 4), "mask": (3,)},
    "tiny-explain": {"pixels": (28, 28, 1)},
}
OUTPUTS = {
    "tiny": ("probabilities", "poses"),
    "color": ("probabilities", "poses"),
    "tiny-decoder": ("reconstruction",),
    "tiny-explain": (
        *("probabilities", "poses", "couplings", "agreements"),
        *("capsules", "activations", "activities"),
    ),
}
SIZES = {
    "probabilities": (3,),
    "poses": (3, 4),
    "reconstruction": (28, 28, 1),
    "couplings": (2, 3, 2, 6, 6),
    "agreements": (2, 3, 2, 6, 6),
    "capsules": (2, 3, 4),
    "activations": (2, 3),
    "activities": (2, 6, 6),
}
ODD_NUMBERS = (np.nan, np.inf, -np.inf, 1e38, -1.0, 2.0, 1e-45)
ALTERABLE = ("values", "json", "text", "tail", "length", "coding")
CODINGS = {
    "identity": bytes,
    "gzip": partial(gzip.compress, mtime=0),
    "deflate": zlib.compress,
    "br": bytes,
    "": bytes,
}


@dataclass(frozen=True)
class Infer:
    """A request to infer; `is_good` where nothing was altered, so that it must be answered."""

    path: str
    model: str
    header: Any
    content: bytes
    headers: dict[str, str]
    is_good: bool


@st.composite
def infer_requests(draw: Draw) -> Infer:
    """A request of one to three images or poses to one of the models, with up to two things altered."""
    model = draw(st.sampled_from(sorted(INPUTS)))
    altering = draw(st.lists(st.sampled_from(ALTERABLE), max_size=2))
    odd = draw(st.sampled_from(ODD_NUMBERS)) if "values" in altering else None
    header, tail = _message(draw, model, draw(st.integers(1, 3)), odd)
    if "json" in altering:
        header = draw(altered(header))
    text = json.dumps(header).encode()
    if "text" in altering:
        text = draw(damaged(text))
    if "tail" in altering:
        tail = draw(damaged(tail))
    headers = {HEADER_LENGTH: str(len(text))} if tail else {}
    if "length" in altering:
        headers[HEADER_LENGTH] = draw(_wrong_lengths(len(text) + len(tail)))
    coding = draw(st.sampled_from(sorted(CODINGS))) if "coding" in altering else "identity"
    content = CODINGS[coding](text + tail)
    if coding != "identity":
        content = draw(st.just(content) | damaged(content))
        headers["Content-Encoding"] = coding
    headers["Accept-Encoding"] = draw(
        st.sampled_from(["identity", "gzip", "deflate", "gzip, br;q=0", "\xff"])
    )
    headers["Content-Type"] = draw(
        st.sampled_from(["application/json", "application/octet-stream", "text/plain", "nonsense"])
    )
    path = f"/v2/models/{model}{draw(st.sampled_from(['', '/versions/1']))}/infer"
    return Infer(path, model, header, content, headers, is_good=not altering)


def _message(draw: Draw, model: str, count: int, odd: float | None) -> tuple[dict[str, Any], bytes]:
    """The JSON of a good request, and the bytes behind it; one of the values is the odd number, if any."""
    tail, inputs = b"", []
    for name, shape in INPUTS[model].items():
        values = good_values(draw, name, (count, *shape))
        if odd is not None:
            values = values.astype("<f4")
            values.flat[-1] = odd
        tensor: dict[str, Any] = {"name": name, "shape": list(values.shape), "datatype": datatype(values)}
        form = draw(st.sampled_from(["flat", "nested", "binary", "binary"]))
        if form == "binary":
            content = values.tobytes()
            tensor["parameters"] = {"binary_data_size": len(content)}
            tail += content
        else:
            tensor["data"] = (values if form == "nested" else values.ravel()).tolist()
        inputs.append(tensor)
    header: dict[str, Any] = {"inputs": inputs}
    if draw(st.booleans()):
        header["id"] = draw(st.text(st.characters(codec="utf-8"), max_size=30))
    if draw(st.booleans()):
        header["outputs"] = [_output(draw, name) for name in draw(st.permutations(OUTPUTS[model]))]
    if draw(st.booleans()):
        header["parameters"] = {"binary_data_output": draw(st.booleans()), "priority": 1}
    return header, tail


def good_values(draw: Draw, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Within 0-1, which is good for every input; of pixels, half of the time as bytes."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if name == "pixels" and draw(st.booleans()):
        return chance.integers(0, 256, shape, np.uint8)
    return chance.random(shape, np.float32).astype("<f4")


def datatype(values: np.ndarray) -> str:
    """Its name in the protocol."""
    return "UINT8" if values.dtype == np.uint8 else "FP32"


def _output(draw: Draw, name: str) -> dict[str, Any]:
    output: dict[str, Any] = {"name": name}
    form = draw(st.sampled_from(["default", "binary", "classes"]))
    if form == "binary":
        output["parameters"] = {"binary_data": draw(st.booleans())}
    if form == "classes" and name == "probabilities":
        output["parameters"] = {"classification": draw(st.sampled_from([0, 1, 3, 4, 2**40]))}
    return output


def _wrong_lengths(total: int) -> st.SearchStrategy[str]:
    odd = ("", "-1", "0", "+5", "1_0", "1e3", "0x10", "NaN", "9" * 400, "\xb2")
    return st.integers(0, total + 2).map(str) | st.sampled_from(odd)
