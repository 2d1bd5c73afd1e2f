"""Choose the fastest variant of a graph for each batch size, from its measured times."""

from collections.abc import Mapping
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.manifest import Architecture
from export.contract.samples import in_pieces
from export.optimize.measure import noise
from export.optimize.plan import Choice, Variant

Name = TypeVar("Name")

TESTED_IMAGES = 19
# A variant whose outputs differ by more from the plain graph's is not used; by as much PyTorch's may. Two
# orders of summation in float32 differ by 1e-6; with unusual weights a transform may lose more. EM routing
# amplifies them from one iteration to the next, in the plain graph as well.
MAX_ERROR: dict[Architecture, float] = {"capsnet": 1e-5, "matrix-capsnet": 1e-4}
# A graph that is faster by less than this, at one batch size, is not worth its memory.
MIN_GAIN = 0.03
# Threads that spin for a moment need not be woken for the next node, or for a run that follows at once, which
# takes up to a quarter of a small batch's time. If they spun for longer they would starve image decoding and
# the event loop, and burn a core while idle.
SPIN_US = 50


def open_variants(
    files: Mapping[Variant, Path], threads: int, *, prepared: bool = False
) -> dict[Variant, ort.InferenceSession]:
    """A session of each variant on the CPU; prepared ones are as the runtime rearranges them already."""
    return {variant: open_variant(file, threads, prepared=prepared) for variant, file in files.items()}


def open_variant(file: Path, threads: int, *, prepared: bool = False) -> ort.InferenceSession:
    """A session on the CPU; a prepared graph is as the runtime rearranges it already."""
    options = cpu_options(threads, prepared=prepared)
    return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def cpu_options(threads: int, *, prepared: bool = False) -> ort.SessionOptions:
    """Options of a session on the CPU, with this number of threads; it writes nothing to standard error."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    options.log_severity_level = 4  # failures are raised; the log does not need the runtime's own lines
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL if prepared else level.ORT_ENABLE_ALL
    return options


def largest_errors(
    sessions: Mapping[Variant, ort.InferenceSession],
    pixels: NDArray[np.float32] | None = None,
    at_once: int = TESTED_IMAGES,
) -> dict[Variant, float]:
    """Largest difference of an output from the plain variant's, by variant; infinite if one is NaN.

    Args:
        sessions: the plain variant among them.
        pixels: images [N, H, W, C], 0 to 1; None takes noise of all contrasts.
        at_once: images in a run.
    """
    plain = sessions["plain"]
    images = noise(plain, TESTED_IMAGES) if pixels is None else pixels

    def outputs(session: ort.InferenceSession) -> list[NDArray[np.float32]]:
        return in_pieces(lambda part: session.run(None, {"pixels": part}), at_once, images)

    expected = outputs(plain)
    errors: dict[Variant, float] = {}
    for variant, session in sessions.items():
        if variant != "plain":
            differences = [np.abs(a - b).max() for a, b in zip(outputs(session), expected, strict=True)]
            errors[variant] = float(np.nan_to_num(np.max(differences), nan=np.inf))  # max() may drop a NaN
    return errors


def choose(milliseconds: Mapping[Variant, Mapping[int, float]]) -> Choice:
    """The variants that together lose least time, each for a range of batch sizes.

    The loss at a size is how much slower a variant is than the fastest one. The losses are added up, and
    each border between two ranges costs MIN_GAIN.

    Args:
        milliseconds: of a batch, by variant and size; every variant has the same sizes.
    """
    sizes = sorted(next(iter(milliseconds.values())))
    slower = slower_than_fastest(milliseconds)

    def lost(variants: tuple[Variant, ...]) -> float:
        borders = sum(a != b for a, b in pairwise(variants))
        return MIN_GAIN * borders + sum(
            slower[variant][size] for variant, size in zip(variants, sizes, strict=True)
        )

    best = min(product(milliseconds, repeat=len(sizes)), key=lost)
    ranges = [
        (variant, [size for _, size in members])
        for variant, members in groupby(zip(best, sizes, strict=True), key=lambda pair: pair[0])
    ]
    return Choice(
        variants=tuple(variant for variant, _ in ranges),
        borders=tuple(members[-1] for _, members in ranges[:-1]),
    )


def slower_than_fastest(milliseconds: Mapping[Name, Mapping[int, float]]) -> dict[Name, dict[int, float]]:
    """By what share each variant is slower than the fastest at each size: 0.1 is a tenth."""
    sizes = next(iter(milliseconds.values()))
    fastest = {size: min(found[size] for found in milliseconds.values()) for size in sizes}
    return {
        variant: {size: found[size] / fastest[size] - 1 for size in sizes}
        for variant, found in milliseconds.items()
    }
