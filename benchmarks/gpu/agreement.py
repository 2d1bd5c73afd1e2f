"""Whether a device names the same classes for the MNIST test images as ONNX Runtime on the CPU.

    python -m benchmarks.gpu.agreement models/capsnet-mnist --precision half
    python -m benchmarks.gpu.agreement models/capsnet-mnist --device cpu --images 500

The device computes as in the service, on a GPU with its sizes of batches and its recordings; the CPU computes
the bundle's graph as it is. Prints one JSON object: how many classes differ and are wrong on either side, the
largest differences of probabilities and poses, and images per second of the second pass.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks import option_types
from export.contract.manifest import read_checked, read_manifest
from service.inference.loading import load_engine
from service.inference.providers import PROVIDERS, EngineOptions
from training.data.datasets import load_split
from training.data.download import data_root
from training.data.readers.files import MissingDataError

# N images, H rows, W columns, C channels, J classes, D dimensions of a pose

Floats = NDArray[np.float32]
Encode = Callable[[Floats], Sequence[Floats]]  # [N, H, W, C] to probabilities [N, J] and poses [N, J, D]

DIGIT = (28, 28, 1)  # height, width and channels
PLAIN_BATCH = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print what was found; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    facts = read_manifest(options.bundle).preprocessing
    if (facts.height, facts.width, facts.channels) != DIGIT:
        parser.error(
            f"{options.bundle} takes images of {facts.height}x{facts.width}x{facts.channels}, not of MNIST"
        )
    try:
        split = load_split("mnist", "test", data_root(options.data))
    except MissingDataError as error:
        parser.error(str(error))
    pixels = split.images[: options.images].astype(np.float32) / np.float32(255)
    with tempfile.TemporaryDirectory() as cache:
        found = compare(options, pixels, split.labels[: options.images], Path(cache))
    line = json.dumps(found)
    print(line)
    if options.json:
        with options.json.open("a") as file:
            file.write(line + "\n")
    return 0


def compare(
    options: argparse.Namespace, pixels: Floats, labels: NDArray[np.integer[Any]], cache: Path
) -> dict[str, Any]:
    """What the two name, for pixels [N, H, W, C] in 0-1 and labels [N]."""
    manifest = read_manifest(options.bundle)
    content = read_checked(options.bundle, manifest.graphs["encoder"])
    plain = ort.InferenceSession(content, providers=[PROVIDERS["cpu"]])
    on_cpu = in_batches(
        lambda part: plain.run(["probabilities", "poses"], {"pixels": part}), pixels, PLAIN_BATCH
    )
    settings = EngineOptions(
        options.device, options.batch, cache, precision=options.precision, optimize=False
    )
    engine = load_engine(options.bundle, manifest.model, settings)
    try:
        in_batches(engine.encode, pixels, engine.max_batch)  # warms up
        began = time.perf_counter()
        here = in_batches(engine.encode, pixels, engine.max_batch)
        seconds = time.perf_counter() - began
        provider, warnings = engine.provider, engine.warnings
    finally:
        engine.close()
    named, expected = here[0].argmax(axis=1), on_cpu[0].argmax(axis=1)
    return {
        "model": manifest.model,
        "version": int(options.bundle.name),
        "provider": provider,
        "precision": options.precision,
        "warnings": list(warnings),
        "images": len(pixels),
        "other_classes": int((named != expected).sum()),
        "wrong": int((named != labels).sum()),
        "wrong_on_cpu": int((expected != labels).sum()),
        "probability_difference": float(np.abs(here[0] - on_cpu[0]).max()),
        "pose_difference": float(np.abs(here[1] - on_cpu[1]).max()),
        "images_per_second": round(len(pixels) / seconds, 1),
    }


def in_batches(encode: Encode, pixels: Floats, size: int) -> list[Floats]:
    """Probabilities and poses of all images, so many at a time."""
    parts = [encode(pixels[start : start + size]) for start in range(0, len(pixels), size)]
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.agreement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "bundle", type=option_types.bundle, help="a model of MNIST digits: its folder, or a version's"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="(cuda)")
    parser.add_argument("--precision", choices=["float32", "half"], default="float32", help="(float32)")
    parser.add_argument(
        "--batch",
        type=option_types.positive,
        default=0,
        help="maximum images per run (default: the service's)",
    )
    parser.add_argument(
        "--images", type=option_types.positive, default=10_000, help="of the test set, from the first (10000)"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of all data sets (default: $CAPSNET_DATA, else data)"
    )
    parser.add_argument("--json", type=Path, help="add what was found to this file, as a line")
    return parser


if __name__ == "__main__":
    sys.exit(main())
