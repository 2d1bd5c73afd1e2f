"""A contender of throughput.py in a process of its own: it runs batches when asked, a line each.

    python -m benchmarks.inference.contender RUNTIME FILE THREADS

FILE is an ONNX graph, for torch the weights as .npz, for the service a bundle's folder; beside it lie
pixels.npy, whose first images make a batch, and a copy of the bundle. Questions and answers are JSON, a line
each. The first answer says {} once the contender is open; later ones are to {"batch": 16, "seconds": 0.5} or
{"batch": 16, "outputs": "file.npz"}. An answer with "error" is the last one.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import peak_bytes

# N images, H rows, W columns, C channels, J classes, D numbers of a pose
# What only one runtime needs is imported by the function that opens it: memory is measured here.

Floats = NDArray[np.float32]
Run = Callable[
    [Floats], tuple[Floats, Floats]
]  # pixels [N, H, W, C] to probabilities [N, J], poses [N, J, D]

MIN_RUNS = 3
COMPARED_IMAGES = 16  # at least


class MissingError(RuntimeError):
    """What a contender needs is not there; the message says what to do."""


def open_onnxruntime(graph: Path, threads: int) -> Run:
    """ONNX Runtime's CPU provider with its defaults: threads spin, which a single session is faster with."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def run(pixels: Floats) -> tuple[Floats, Floats]:
        probabilities, poses = session.run(["probabilities", "poses"], {"pixels": pixels})
        return probabilities, poses

    return run


def open_openvino(graph: Path, threads: int) -> Run:
    """OpenVINO's CPU device in float32, without copies of what goes in and out.

    One graph with a free batch: one for each size is no faster and takes the memory several times.
    """
    _need("openvino", "bench")
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()

    def run(pixels: Floats) -> tuple[Floats, Floats]:
        found = request.infer({"pixels": pixels}, share_inputs=True, share_outputs=True)
        return found["probabilities"], found["poses"]

    return run


def open_torch(weights: Path, threads: int, *, compiled: bool) -> Run:
    """PyTorch with the bundle's weights, channels last, as which the pixels come: else it copies weights.

    Compiled for each size of batch, with frozen weights, which lets torch pack them beforehand. Its mode is
    the default one: on a CPU, max-autotune takes longer to compile and is no faster.
    """
    _need("torch", "train")
    import torch

    from export.graph import EncoderGraph

    torch.set_num_threads(threads)
    parameters = json.loads((weights.parent / "bundle" / "manifest.json").read_text())["parameters"]
    is_matrix = parameters.get("architecture") == "matrix-capsnet"
    model = _matrix_capsnet(weights.parent / "bundle") if is_matrix else _capsnet(parameters, weights)
    encoder: Any = EncoderGraph(model).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        if parameter.dim() == 4:  # of a convolution
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    if compiled:
        from torch._inductor import config

        config.freezing = True
        torch._dynamo.config.recompile_limit = 64  # sizes of batches; beyond it torch would run eagerly
        encoder = torch.compile(encoder, dynamic=False)

    def run(pixels: Floats) -> tuple[Floats, Floats]:
        with torch.inference_mode():
            probabilities, poses = encoder(torch.from_numpy(pixels))
        return probabilities.numpy(), poses.numpy()

    return run


def _capsnet(parameters: dict[str, Any], weights: Path) -> Any:
    """The CapsNet of these parameters, without its decoder."""
    import torch

    from training.config import CapsNetConfig
    from training.config.renamed import with_current_names
    from training.models.capsnet import CapsNet

    model = CapsNet(CapsNetConfig(**{**with_current_names(parameters), "decoder_hidden": ()}))
    with np.load(weights, allow_pickle=False) as values:
        missing = sorted(model.state_dict().keys() - set(values.files))
        if missing:
            raise MissingError(f"torch needs the weights of a CapsNet; the graph has no {', '.join(missing)}")
        model.load_state_dict({name: torch.from_numpy(values[name]) for name in model.state_dict()})
    return model


def _matrix_capsnet(bundle: Path) -> Any:
    """A bundle's network of matrix capsules as the paper writes it down, without its decoder."""
    from training.config import MatrixCapsNetConfig
    from training.models.matrix_capsnet import MatrixCapsNet
    from training.runs import from_bundle, matrix_bundle

    config = from_bundle.trained_config(bundle).model
    assert isinstance(config, MatrixCapsNetConfig)
    config = replace(config, decoder_hidden=())
    trained = matrix_bundle.read_encoder(bundle, config)
    model = MatrixCapsNet(config)  # not in its form for training, which is no program for torch.compile
    model.load_state_dict(trained.state_dict())
    return model


def open_service(bundle: Path, threads: int) -> Run:
    """The service's own sessions; a batch is shared between them as the service does."""
    from export.contract.manifest import read_manifest
    from service.inference.loading import load_engine
    from service.inference.providers import EngineOptions

    options = EngineOptions("cpu", max_batch=0, cache=bundle.parent / "cache", threads=threads)
    engine = load_engine(bundle, read_manifest(bundle).model, options)
    executor = ThreadPoolExecutor(engine.parallel_batches)

    def run(pixels: Floats) -> tuple[Floats, Floats]:
        if len(pixels) <= engine.max_batch:
            return engine.encode(pixels)
        runs_per_thread = math.ceil(len(pixels) / (engine.parallel_batches * engine.max_batch))
        parts = np.array_split(pixels, min(len(pixels), engine.parallel_batches * runs_per_thread))
        found = list(executor.map(partial(engine.encode, exclusive=False), parts))
        probabilities, poses = (np.concatenate(outputs) for outputs in zip(*found, strict=True))
        return probabilities, poses

    return run


RUNTIMES: Mapping[str, Callable[[Path, int], Run]] = {
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    "service": open_service,
    "torch": partial(open_torch, compiled=False),
    "torch.compile": partial(open_torch, compiled=True),
}


def _need(package: str, extra: str) -> None:
    if not find_spec(package):
        raise MissingError(f"{package} is not installed; pip install -e '.[{extra}]'")


def main(runtime: str, file: Path, threads: int) -> None:
    """Open the contender and answer until there are no more questions."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        run = RUNTIMES[runtime](file, threads)
        pixels: Floats = np.load(file.parent / "pixels.npy", mmap_mode="r")
        print(json.dumps({}), file=answers)
        for line in sys.stdin:
            print(json.dumps(answer(run, pixels, **json.loads(line))), file=answers)
    except Exception as error:  # of foreign runtimes, each with errors of its own
        text = (str(error).splitlines() or [""])[0]
        print(json.dumps({"error": f"{type(error).__name__}: {text}"}), file=answers)


def answer(
    run: Run, pixels: Floats, batch: int, seconds: float | None = None, outputs: str | None = None
) -> dict[str, float]:
    """Time batches for so many seconds, or write the outputs of some images, found in such batches."""
    if outputs is not None:
        count = batch * max(1, COMPARED_IMAGES // batch)
        starts = range(0, count, batch)
        # A runtime may give the same memory again in the next run.
        found = [[part.copy() for part in run(np.array(pixels[start : start + batch]))] for start in starts]
        probabilities, poses = (np.concatenate(parts) for parts in zip(*found, strict=True))
        np.savez(outputs, probabilities=probabilities, poses=poses)
        return {}
    times = run_times(run, np.array(pixels[:batch]), seconds or 0)
    return {"seconds": median(times), "runs": len(times), "peak_bytes": peak_bytes()}


def run_times(run: Run, pixels: Floats, seconds: float) -> list[float]:
    """Seconds of each run of this batch, over so many seconds."""
    run(pixels)  # its weights come back into the caches
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < MIN_RUNS or time.perf_counter() < until:
        began = time.perf_counter()
        run(pixels)
        times.append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
