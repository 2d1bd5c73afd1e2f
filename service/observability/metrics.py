"""Metrics for Prometheus: counters and histograms as things happen; gauges are read when it asks."""

import os
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from service.observability.process_totals import ProcessTotals

VERSION = ("model", "version")
WAIT_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
BATCH_IMAGES = tuple(2**power for power in range(13))  # to the largest CAPSNET_MAX_BATCH

# A second series beside every counter and histogram with its start time; the library's switch is global.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the rest of it is typed


class ModelMetrics:
    """The metrics of one version, for its inference threads; made by `Metrics.model`."""

    def __init__(self, waits: Histogram, computes: Histogram, batches: Histogram) -> None:
        self._waits = waits
        self._computes = computes
        self._batches = batches

    def queued_for(self, seconds: float) -> None:
        """A request has waited this long for its first batch."""
        self._waits.observe(seconds)

    def ran(self, images: int, seconds: float) -> None:
        """A batch was computed."""
        self._batches.observe(images)
        self._computes.observe(seconds)


class Metrics:
    """The metrics of loading, inference and the processes, in their own registry; for any thread.

    Attributes:
        pids: the processes of the service.
        process_restarts: how many workers and engine processes have died and were replaced.
    """

    def __init__(self) -> None:
        self.pids: Callable[[], Iterable[int]] = lambda: (os.getpid(),)
        self.process_restarts: Callable[[], Sequence[int]] = lambda: (0, 0)
        self._registry = CollectorRegistry()
        # A version that is loaded anew is there twice for a while.
        self._users: Tally[tuple[str, int]] = Tally()
        self._waits = self._histogram(
            "queue_wait_seconds",
            "Time that a request's images waited for their first batch",
            WAIT_S,
            *VERSION,
        )
        self._computes = self._histogram("compute_seconds", "Time that a batch took", WAIT_S, *VERSION)
        self._batches = self._histogram("batch_images", "Images in a batch", BATCH_IMAGES, *VERSION)
        self._reloads = self._counter("reloads", "Versions that were loaded and took traffic", "model")
        self._refusals = self._counter("refusals", "Bundles that could not be loaded", "model")
        self._drops = self._counter("drops", "Versions that were drained and taken down", "model")
        self.register(ProcessTotals(lambda: self.pids()))
        self.register(_ProcessRestarts(lambda: self.process_restarts()))

    def register(self, collector: Collector) -> None:
        """Ask this collector, too, at every scrape."""
        self._registry.register(collector)

    def model(self, name: str, version: int) -> ModelMetrics:
        """The metrics of a version; call it at each load, and `dropped` or `forget` at the end of each."""
        self._users[name, version] += 1
        labels = (name, version)
        return ModelMetrics(
            self._waits.labels(*labels),
            self._computes.labels(*labels),
            self._batches.labels(*labels),
        )

    def found(self, model: str) -> None:
        """There are bundles of it. From now its counts are 0: a rate misses what begins a series."""
        for events in (self._reloads, self._refusals, self._drops):
            events.labels(model)

    def reloaded(self, model: str) -> None:
        """A version was loaded and takes traffic."""
        self._reloads.labels(model).inc()

    def refused(self, model: str) -> None:
        """A bundle could not be loaded."""
        self._refusals.labels(model).inc()

    def dropped(self, model: str, version: int) -> None:
        """A version that took traffic was taken down; see `forget`."""
        self._drops.labels(model).inc()
        self.forget(model, version)

    def forget(self, model: str, version: int) -> None:
        """A version is not loaded any more; its series end, or each publication would leave some for ever."""
        self._users[model, version] -= 1
        if self._users[model, version] <= 0:
            del self._users[model, version]
            for histogram in (self._waits, self._computes, self._batches):
                histogram.remove(model, version)

    def scrape(self) -> bytes:
        """Everything, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"capsnet_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"capsnet_{name}", about, labels, buckets=buckets, registry=self._registry)


class _ProcessRestarts(Collector):
    """The processes of a service with workers that were replaced; none of a service of one process."""

    def __init__(self, counts: Callable[[], Sequence[int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        """A sample for the workers and one for the engine process."""
        family = CounterMetricFamily(
            "capsnet_process_restarts",
            "Workers and engine processes that died and were replaced",
            labels=("process",),
        )
        for process, count in zip(("worker", "engine"), self._counts(), strict=True):
            family.add_metric([process], count)
        yield family
