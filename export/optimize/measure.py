"""Time the variants of a graph as a service runs them: one variant, many times in a row.

A graph that runs only once in a while finds its weights pushed out of the caches; a service runs the same one
again and again. So a variant runs in blocks of consecutive runs, of which the first is not counted. The
blocks of the variants take turns, so that a machine that slows down slows them all down alike. Between two
blocks runs what else a service runs, such as its decoder. Where a service runs several batches side by side,
other threads run the same batches during a block.

The best run of a variant is compared with the best runs of the others, because other work on the machine only
ever adds time. A variant that is close to the fastest gets more blocks. So do all that may be the fastest
while the best time of one of them has been seen only once.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Generic, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Name = TypeVar("Name")  # of what is measured, such as a variant

SIZES = (1, 2, 4, 8, 16)
MIN_BLOCKS, MAX_BLOCKS, MAX_S = 3, 10, 2.0  # for a size of batch; three blocks though they take longer
MIN_RUNS, BLOCK_S = 3, 0.04  # in a row, after the first
CLOSE = 1.05  # times the fastest: to tell such variants apart takes more blocks
RIVAL = 1.4  # times the fastest: noise might hide that such a variant is faster
HOPELESS = 2.5  # times the fastest, in the first block already


@dataclass
class Times(Generic[Name]):
    """What was measured.

    Attributes:
        milliseconds: of the best run of a batch, by variant and size.
        waited_s: how long threads waited for a core, all together.
        took_s: how long measuring took.
    """

    milliseconds: dict[Name, dict[int, float]] = field(default_factory=dict)
    waited_s: float = 0.0
    took_s: float = 0.0

    @property
    def waited(self) -> float:
        """Seconds of waiting in each second of measuring: 0 on idle cores, or if the system does not say."""
        return self.waited_s / self.took_s if self.took_s else 0.0


def measure(
    sessions: Mapping[Name, ort.InferenceSession],
    sizes: Sequence[int],
    *,
    parallel: int = 1,
    between: Callable[[], object] = lambda: None,
) -> Times[Name]:
    """Time each variant at each size of batch.

    Args:
        sessions: by variant.
        sizes: images in a batch.
        parallel: how many batches run side by side.
        between: is called between two blocks.
    """
    times = Times({variant: {} for variant in sessions})
    for size in sizes:
        best: dict[Name, list[float]] = {variant: [] for variant in sessions}  # of each block
        feeds = {"pixels": noise(next(iter(sessions.values())), size)}
        until = time.perf_counter() + MAX_S
        while rivals := undecided(best, is_late=time.perf_counter() > until):
            for variant in rivals:
                between()
                best[variant].append(_block(sessions[variant], feeds, parallel, times))
        for variant, found in best.items():
            times.milliseconds[variant][size] = min(found)
    return times


def undecided(best: Mapping[Name, Sequence[float]], *, is_late: bool = False) -> list[Name]:
    """The variants that need another block to say which one is the fastest; none once that is clear.

    Args:
        best: the best run of each block so far, by variant.
        is_late: there is no time for more than MIN_BLOCKS.
    """
    blocks = max(map(len, best.values()))
    if blocks == 0:
        return list(best)
    fastest = min(min(found) for found in best.values())
    limit = fastest * (HOPELESS if blocks < MIN_BLOCKS else RIVAL)
    rivals = [variant for variant, found in best.items() if min(found) <= limit]
    if len(rivals) == 1:
        return []
    if blocks < MIN_BLOCKS:
        return rivals
    close = [variant for variant in rivals if min(best[variant]) <= CLOSE * fastest]
    is_clear = len(close) == 1 and all(_came_twice(best[variant]) for variant in rivals)
    return [] if is_late or is_clear or blocks >= MAX_BLOCKS else rivals


def noise(session: ort.InferenceSession, images: int) -> NDArray[np.float32]:
    """Random pictures [N, H, W, C] of the size that the graph takes, some of them nearly flat."""
    random = np.random.default_rng(0)
    shape = session.get_inputs()[0].shape[1:]
    contrast = np.linspace(1, 0, images).reshape(images, *(1 for _ in shape))
    return (random.random((images, *shape)) * contrast).astype(np.float32)


def _came_twice(best: Sequence[float]) -> bool:
    """Whether two blocks agree on the best run."""
    first, second = sorted(best)[:2]
    return second <= CLOSE * first


def _block(
    session: ort.InferenceSession, feeds: Mapping[str, NDArray[np.float32]], parallel: int, times: Times[Name]
) -> float:
    """Milliseconds of the best of some runs in a row; what they waited and took is added to the times."""
    with _others(session, feeds, parallel - 1):
        session.run(None, feeds)  # its weights come back into the caches; memory is set aside
        began, waited_s, best, runs = time.perf_counter(), _waited_s(), math.inf, 0
        while runs < MIN_RUNS or time.perf_counter() < began + BLOCK_S:
            before = time.perf_counter()
            session.run(None, feeds)
            best = min(best, time.perf_counter() - before)
            runs += 1
        times.waited_s += max(0.0, _waited_s() - waited_s)
        times.took_s += time.perf_counter() - began
    return 1000 * best


@contextmanager
def _others(
    session: ort.InferenceSession, feeds: Mapping[str, NDArray[np.float32]], others: int
) -> Iterator[None]:
    """Meanwhile, run the same batch again and again on other threads."""
    is_over = Event()

    def run() -> None:
        while not is_over.is_set():
            session.run(None, feeds)

    threads = [Thread(target=run) for _ in range(others)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _waited_s() -> float:
    """How long all threads together have waited for a core; 0 where the system does not say."""
    waited_ns = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(file.read_text().split()[1])
    return waited_ns / 1e9
