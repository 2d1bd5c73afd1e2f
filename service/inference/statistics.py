"""What a graph has done since its version was loaded, in the units of Triton's statistics extension.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

NS = 1_000_000_000  # nanoseconds in a second


@dataclass
class Duration:
    """How often something happened, and how long it took in sum, in seconds."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """It happened again, and took this long."""
        self.count += count
        self.seconds += seconds

    def describe(self) -> dict[str, int]:
        """As Triton has it: `count` and `ns`."""
        return {"count": self.count, "ns": round(self.seconds * NS)}


@dataclass
class Steps:
    """The parts of a run: requests joined into a batch, the graph, and its outputs handed out."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)

    def describe(self) -> dict[str, dict[str, int]]:
        """The three durations by Triton's names."""
        return {name: duration.describe() for name, duration in vars(self).items()}


class GraphStatistics:
    """Counts and durations of one graph. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._images = 0
        self._runs = 0
        self._last_ms = 0
        self._success, self._fail, self._queue = Duration(), Duration(), Duration()
        self._steps = Steps()
        self._by_images: defaultdict[int, Steps] = defaultdict(Steps)

    def succeeded(self, images: int, seconds: float) -> None:
        """A request of so many images got its result, so long after it came."""
        with self._lock:
            self._images += images
            self._success.add(seconds)
            self._last_ms = time.time_ns() // 1_000_000

    def failed(self, seconds: float) -> None:
        """A request ended with an error, so long after it came."""
        with self._lock:
            self._fail.add(seconds)
            self._last_ms = time.time_ns() // 1_000_000

    def queued_for(self, seconds: float) -> None:
        """A request has waited this long for its first batch."""
        with self._lock:
            self._queue.add(seconds)

    def ran(self, images: int, begun: int, parts: int, seconds: tuple[float, float, float]) -> None:
        """A batch was run.

        Args:
            images: in the batch.
            begun: requests of which these are the first images.
            parts: requests that have images in the batch: each waited for all of it.
            seconds: for joining, running and handing out.
        """
        with self._lock:
            self._runs += 1
            per_batch = self._by_images[images]
            for name, took in zip(vars(self._steps), seconds, strict=True):
                getattr(self._steps, name).add(took * parts, begun)
                getattr(per_batch, name).add(took)

    def describe(self) -> dict[str, Any]:
        """The fields of Triton's ModelStatistics, but for name and version."""
        with self._lock:
            return {
                "last_inference": self._last_ms,
                "inference_count": self._images,
                "execution_count": self._runs,
                "inference_stats": {
                    "success": self._success.describe(),
                    "fail": self._fail.describe(),
                    "queue": self._queue.describe(),
                    **self._steps.describe(),
                    "cache_hit": Duration().describe(),  # no answer is cached
                    "cache_miss": Duration().describe(),
                },
                "batch_stats": [
                    {"batch_size": images, **steps.describe()}
                    for images, steps in sorted(self._by_images.items())
                ],
            }
