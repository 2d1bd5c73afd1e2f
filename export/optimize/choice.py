"""Measure the forms of a graph side by side and choose the fastest for each size of batch."""

import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.optimize.plan import Choice, Form

Milliseconds = dict[Form, dict[int, float]]

SIZES = (1, 2, 4, 8, 16)
SECONDS, LEAST_ROUNDS = 0.25, 4  # of measuring a size
TESTED_IMAGES = 19
# A form whose outputs differ by more from the plain graph's is not used. Two orders of summation in float32
# differ by 1e-6; the weights of a model far from the papers' might be such that a transform loses more.
MAX_ERROR = 1e-5


def open_forms(
    files: Mapping[Form, Path], threads: int, *, prepared: bool = False
) -> dict[Form, ort.InferenceSession]:
    """A session of each form on the CPU; prepared ones are as the runtime rearranges them already."""
    options = cpu_options(threads, prepared=prepared)
    return {
        form: ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        for form, file in files.items()
    }


def cpu_options(threads: int, *, prepared: bool = False) -> ort.SessionOptions:
    """Options of a session on the CPU, with so many threads and nothing said on standard error."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that spin between runs starve image decoding, and burn a core while idle.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # what fails is raised, too; its own line of it is none of our log's
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL if prepared else level.ORT_ENABLE_ALL
    return options


def largest_errors(
    sessions: Mapping[Form, ort.InferenceSession], pixels: NDArray[np.float32] | None = None
) -> dict[Form, float]:
    """The largest difference of an output from the plain form's, by form; infinite if one is not a number.

    Args:
        sessions: the plain form among them.
        pixels: images [N, H, W, C], 0 to 1; None takes noise of all contrasts.
    """
    plain = sessions["plain"]
    images = _noise(plain, TESTED_IMAGES) if pixels is None else pixels
    expected = plain.run(None, {"pixels": images})
    errors: dict[Form, float] = {}
    for form, session in sessions.items():
        if form != "plain":
            found = session.run(None, {"pixels": images})
            worst = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))
            errors[form] = float(np.nan_to_num(worst, nan=np.inf))
    return errors


def measure(sessions: Mapping[Form, ort.InferenceSession], sizes: Sequence[int]) -> Milliseconds:
    """Least milliseconds of a batch, by form and size; the forms take turns, so noise hits them alike."""
    times: dict[Form, dict[int, float]] = {form: {} for form in sessions}
    for size in sizes:
        feeds = {"pixels": _noise(sessions["plain"], size)}
        taken: dict[Form, list[float]] = {form: [] for form in sessions}
        until = time.perf_counter() + SECONDS
        # The first run of a size sets memory aside.
        while time.perf_counter() < until or len(taken["plain"]) < LEAST_ROUNDS:
            for form, session in sessions.items():
                before = time.perf_counter()
                session.run(None, feeds)
                taken[form].append(1000 * (time.perf_counter() - before))
        for form, values in taken.items():
            times[form][size] = min(values[1:])
    return times


def choose(times: Milliseconds) -> Choice:
    """The form for small batches and the form for large ones that together lose least.

    What they lose at a size is how much slower they are than the fastest form there; it is added up.
    """
    sizes = sorted(times["plain"])
    fastest = {size: min(found[size] for found in times.values()) for size in sizes}

    def lost(choice: tuple[Form, int, Form]) -> tuple[float, bool]:
        small, small_up_to, large = choice
        taken = (times[small if size <= small_up_to else large][size] / fastest[size] for size in sizes)
        return sum(taken), small != large  # of equals, the one that is simpler

    small, small_up_to, large = min(product(times, sizes, times), key=lost)
    return Choice(small=small, small_up_to=small_up_to, large=large)


def _noise(session: ort.InferenceSession, images: int) -> NDArray[np.float32]:
    """Random pictures of the size that the graph takes, some of them nearly flat."""
    random = np.random.default_rng(0)
    shape = session.get_inputs()[0].shape[1:]
    contrast = np.linspace(1, 0, images).reshape(images, *(1 for _ in shape))
    return (random.random((images, *shape)) * contrast).astype(np.float32)
