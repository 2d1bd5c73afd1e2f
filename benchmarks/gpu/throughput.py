"""Images per second of an encoder on a GPU, by runtime and batch size, beside large matrix products.

    python -m benchmarks.gpu.throughput                     about ten minutes; TensorRT builds engines first
    python -m benchmarks.gpu.throughput --quick             three batch sizes, short measurements
    python -m benchmarks.gpu.throughput --only CUDA         only what has CUDA in its name
    python -m benchmarks.gpu.throughput --kernels FILE      which kernels take the time, by contender
    python -m benchmarks.gpu.throughput --device cpu        the same code where there is no GPU, tiny batches

It needs the driver and `pip install -e '.[tensorrt,train]'`, or `.[gpu,train]` without TensorRT's rows;
never with the extra `cpu`. What is missing is said and left out. Without a GPU: exit status 2.

All runtimes have the same weights, those of the bundle, and the same pixels. Inputs and outputs stay in the
GPU's memory, except in the row "as served", which takes and gives numpy arrays as the service does. A time is
that of one batch, from its start until the GPU has finished; shown is the median. Every contender's
probabilities are compared with those of ONNX Runtime's CPU provider: the last column has the largest
difference. float32 is float32, TF32 is off, but for TensorRT, which may use it. torch's half precision is its
autocast as it is commonly used: it casts the weights anew for every run; votes and routing stay in float32.
"""

import argparse
import gc
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks import option_types
from benchmarks.gpu.arithmetic_limit import Limit, measured_limit, multiply_adds_per_image
from benchmarks.gpu.contenders import Floats, Prepare, Setup, contenders
from benchmarks.gpu.timing import PROFILED_RUNS, kernels, seconds_per_run
from benchmarks.machine import installed
from benchmarks.paths import ROOT
from export.contract.manifest import read_checked, read_manifest
from service.inference.providers import PROVIDERS

# N images, H rows, W columns, C channels, J classes

BATCHES = {"cuda": (1, 8, 32, 64, 128, 256, 512, 1024), "cpu": (1, 2)}
QUICK_BATCHES = {"cuda": (1, 32, 256), "cpu": (1, 2)}
COMPARED = 8  # images whose probabilities are compared


@dataclass
class Row:
    """What was found of one contender.

    Attributes:
        images_per_second: by batch size; one that failed is missing.
        difference: the largest of any probability from the CPU's; None before anything has run.
        notes: what failed, and why.
    """

    name: str
    images_per_second: dict[int, float] = field(default_factory=dict)
    difference: float | None = None
    notes: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table as it grows; returns the exit status."""
    options = _parser().parse_args(arguments)
    gpu = find_gpu() if options.device == "cuda" else ""
    if options.device == "cuda" and not gpu:
        print(
            "gpu: there is no NVIDIA GPU here: neither torch nor nvidia-smi finds one. "
            "--device cpu runs the same code on the CPU.",
            file=sys.stderr,
        )
        return 2
    manifest = read_manifest(options.bundle)
    encoder = onnx.load_model_from_string(read_checked(options.bundle, manifest.graphs["encoder"]))
    usual = QUICK_BATCHES if options.quick else BATCHES
    batches = tuple(options.batches or usual[options.device])
    with tempfile.TemporaryDirectory() as cache:
        seconds = 0.2 if options.quick else 2.0
        setup = Setup(options.device, batches, seconds, manifest, encoder, Path(cache), options.kernels)
        print(_heading(gpu or options.device))
        print(f"{'images/s at batch':40}" + "".join(f"{size:>9}" for size in batches) + f"{'differs':>10}")
        multiply_adds = multiply_adds_per_image(encoder)
        limit = measured_limit(options.device, multiply_adds, seconds)
        rows: list[Row] = []
        for row in measure_all(setup, options.only):
            rows.append(show(row, batches))
            if options.json:  # each time: a limit of time may end this at any row
                record = _record(setup, gpu, limit, multiply_adds, rows)
                options.json.write_text(json.dumps(record, indent=2) + "\n")
    print("\n".join(_limit_lines(limit, multiply_adds, rows)))
    return 0 if any(row.images_per_second for row in rows) else 1


# -- measuring --------------------------------------------------------------------------------------------


def measure_all(setup: Setup, only: str) -> Iterator[Row]:
    """Measure one contender after the other."""
    facts = setup.manifest.preprocessing
    shape = (max(*setup.batches, COMPARED), facts.height, facts.width, facts.channels)
    pixels = np.random.default_rng(0).random(shape, np.float32)
    reference = ort.InferenceSession(setup.encoder.SerializeToString(), providers=[PROVIDERS["cpu"]])
    expected = reference.run(["probabilities"], {"pixels": pixels[:COMPARED]})[0]
    for name, opening in contenders(setup):
        if only.lower() in name.lower():
            yield measure(Row(name), opening, setup, pixels, expected)
            _free_memory()


def measure(row: Row, opening: Callable[[], Prepare], setup: Setup, pixels: Floats, expected: Floats) -> Row:
    """Fill in the row, [N, H, W, C] pixels at a time; `expected` are probabilities of the first images."""
    try:
        prepare = opening()
    except Exception as error:  # of foreign runtimes, each with errors of its own: a row without numbers
        row.notes.append(_first_line(error))
        return row
    for size in setup.batches:
        try:
            prepared = prepare(pixels[:size])
            row.images_per_second[size] = size / seconds_per_run(prepared.run, setup.seconds)
            found = prepared.probabilities()[:COMPARED]
            if setup.kernels and size == max(setup.batches):
                with setup.kernels.open("a") as file:
                    table = kernels(prepared.run, setup.device)
                    file.write(f"{row.name}, batch {size}, {PROFILED_RUNS} runs\n{table}\n")
        except Exception as error:  # such as being out of memory, at this size
            row.notes.append(f"batch {size}: {_first_line(error)}")
            continue
        difference = float(np.abs(found - expected[: len(found)]).max())
        row.difference = max(row.difference or 0.0, difference)
    return row


def _free_memory() -> None:
    """What one contender held is not in the next one's way."""
    gc.collect()
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].cuda.empty_cache()


# -- reporting --------------------------------------------------------------------------------------------


def show(row: Row, batches: Sequence[int]) -> Row:
    """Print the row and hand it on."""
    if row.difference is None:
        print(f"{row.name:40} left out: {'; '.join(row.notes)}", flush=True)
        return row
    speeds = (row.images_per_second.get(size) for size in batches)
    found = "".join(f"{speed:>9.0f}" if speed else f"{'-':>9}" for speed in speeds)
    print(f"{row.name:40}{found}{row.difference:>10.1e}", *row.notes, sep="\n    ", flush=True)
    return row


def find_gpu() -> str:
    """The GPU's name, as torch or the driver has it; "" if neither knows of one."""
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(0)
    if not shutil.which("nvidia-smi"):
        return ""
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answered = subprocess.run(asked, capture_output=True, text=True, check=False)
    return "" if answered.returncode else answered.stdout.partition("\n")[0]


def _limit_lines(limit: Limit | None, multiply_adds: int, rows: Sequence[Row]) -> Iterator[str]:
    yield f"\n{multiply_adds / 1e6:.1f} million multiply-adds an image"
    if limit is None:
        yield "no limit: torch, which would measure it, is not here or not for this device"
        return
    best = max((max(row.images_per_second.values(), default=0.0) for row in rows), default=0.0)
    yield "limit at the speed of large matrix products, direct convolution:"
    for name, most in limit._asdict().items():
        speed = f"{most:>12,.0f} images/s ({most * multiply_adds * 2e-12:.3g} TFLOP/s)"
        yield f"  {name}{speed}; the best row has {best / most:.0%} of it"


def _heading(where: str) -> str:
    found = installed("torch", "onnxruntime", "onnxruntime-gpu", "tensorrt")
    versions = [f"{name} {version}" for name, version in found.items()]
    return f"{where}, Python {platform.python_version()}, {', '.join(versions)}\n"


def _record(
    setup: Setup, gpu: str, limit: Limit | None, multiply_adds: int, rows: Sequence[Row]
) -> dict[str, Any]:
    return {
        "device": setup.device,
        "gpu": gpu,
        "multiply_adds_per_image": multiply_adds,
        "limit_images_per_second": limit._asdict() if limit else None,
        "rows": [vars(row) for row in rows],
    }


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog="\n\n".join((__doc__ or "").split("\n\n")[1:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to run (cuda)")
    parser.add_argument("--quick", action="store_true", help="fewer batch sizes, shorter measurements")
    parser.add_argument(
        "--batches", type=option_types.several, metavar="N,N", help="images at a time, such as 1,64,1024"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="contenders whose name has this in it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    parser.add_argument(
        "--kernels", type=Path, metavar="FILE", help="append tables of the kernels' times (needs torch)"
    )
    parser.add_argument(
        "--bundle",
        type=option_types.bundle,
        default=str(ROOT / "models" / "capsnet-mnist"),
        help="a version of a model, or the model's folder for its newest (models/capsnet-mnist)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
