"""What every peer does with a picture: the same decoder, the same session, the same answer."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import orjson
from numpy.typing import NDArray
from PIL import Image

from export.optimize.choice import SPIN_US

Floats = NDArray[np.float32]

BUNDLE = Path(os.environ["BENCH_BUNDLE"])
THREADS = int(os.environ["BENCH_THREADS"])
MAX_BATCH = 8  # of the plain graph larger ones are no faster


def load_session() -> ort.InferenceSession:
    """The bundle's encoder on the CPU, with threads that spin as long as the service's."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    return ort.InferenceSession(BUNDLE / "encoder.onnx", options, ["CPUExecutionProvider"])


def decode(png: bytes) -> Floats:
    """A PNG file of the model's size to [H, W, 1], 0-1."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        return np.asarray(picture.convert("L"), np.float32)[..., None] / np.float32(255)


def run(session: ort.InferenceSession, pixels: Floats) -> tuple[Floats, Floats]:
    """Pixels [N, H, W, 1] to probabilities [N, J] and poses [N, J, D]."""
    probabilities, poses = session.run(["probabilities", "poses"], {"pixels": pixels})
    return probabilities, poses


def answer(probabilities: Floats, poses: Floats) -> dict[str, Any]:
    """One picture's probabilities [J] and poses [J, D], best class first, as /classify gives them."""
    order = np.argsort(-probabilities, kind="stable")
    return {
        "label": str(order[0]),
        "classes": [{"label": str(j), "probability": probabilities[j], "pose": poses[j]} for j in order],
    }


def to_json(result: dict[str, Any]) -> bytes:
    """The answer's body."""
    return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
