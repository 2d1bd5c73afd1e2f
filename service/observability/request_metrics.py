"""Metrics of requests, for Prometheus. Several worker processes add theirs up.

Where PROMETHEUS_MULTIPROC_DIR names a folder, the library keeps every count in a file there, and a scrape in
any worker adds up all files. A worker that replaces one which has died goes on with its files, so no count
ever falls, and a scrape reads no more files after many deaths.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # read while the library is imported; the supervisor of workers sets it
MAX_LABELS = 100  # of each model: a bundle may have a hundred thousand classes
OTHER = "other"
REQUEST_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)


def count_as_worker(number: int) -> None:
    """Keep what this process counts in the files of that worker; call it before anything is counted.

    No other process may count as the same worker.
    """
    values.ValueClass = values.MultiProcessValue(lambda: f"worker-{number}")  # type: ignore[no-untyped-call]


class RequestMetrics:
    """What was asked and how long the answers took. Any thread may call every method but `predicted`.

    Finding a labeled child takes a lock and a dictionary of strings, so each is looked up once and kept.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._by_status: dict[tuple[str, int], Counter] = {}
        self._by_route: dict[str, Histogram] = {}
        self._requests = Counter(
            "capsnet_requests", "Requests answered", ("route", "status"), registry=self._registry
        )
        self._by_label: dict[tuple[str, str], Counter] = {}
        self._labels: defaultdict[str, int] = defaultdict(int)  # of each model, but for OTHER
        self._problems = Counter(
            "capsnet_problems", "Answers that name a problem, by its type", ("type",), registry=self._registry
        )
        self._predictions = Counter(
            "capsnet_predictions",
            f"Classes that /classify named; those after the model's first {MAX_LABELS} are '{OTHER}'",
            ("model", "label"),
            registry=self._registry,
        )
        self._durations = Histogram(
            "capsnet_request_duration_seconds",
            "Time from a request's head to the end of its answer",
            ("route",),
            buckets=REQUEST_S,
            registry=self._registry,
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request is over.

        Args:
            route: the template it matched, such as `/models/{name}`; never the path, of which there are
                infinitely many.
            status: of the answer; 499 if the client hung up before it.
            seconds: how long it took.
        """
        counter = self._by_status.get((route, status))
        if counter is None:
            self._by_route[route] = self._durations.labels(route)
            counter = self._by_status[route, status] = self._requests.labels(route, status)
        counter.inc()
        self._by_route[route].observe(seconds)

    def refused(self, problem: str) -> None:
        """An answer named this problem, such as /problems/overloaded."""
        self._problems.labels(problem).inc()

    def predicted(self, model: str, labels: Iterable[str], class_names: Sequence[str]) -> None:
        """A model has named these of its classes; for the event loop."""
        for label in labels:
            counter = self._by_label.get((model, label)) or self._new_label(model, label, class_names)
            counter.inc()

    def _new_label(self, model: str, label: str, class_names: Sequence[str]) -> Counter:
        """The count of a label: all processes of a service take the model's first ones.

        There is room for as many in all versions together, whose classes may differ.
        """
        if label not in class_names[:MAX_LABELS] or self._labels[model] == MAX_LABELS:
            return self._predictions.labels(model, OTHER)
        self._labels[model] += 1
        self._by_label[model, label] = counter = self._predictions.labels(model, label)
        return counter

    def scrape(self) -> bytes:
        """The metrics of all workers, in Prometheus' text format 0.0.4."""
        registry = self._registry
        if FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the rest of it is typed
        return generate_latest(registry)
