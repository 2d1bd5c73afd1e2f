"""What Prometheus is told: counters and histograms as things happen, gauges read when it asks."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import prometheus_client
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from service.errors import NotReadyError
from service.routes.direct_route import answer_head

VERSION = ("model", "version")
REQUEST_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
WAIT_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
BATCH_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# A second series beside every counter and histogram that says when it began; the library's switch is global.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the rest of it is typed

routes = APIRouter()


class Queue(Protocol):
    """What is read of a batcher."""

    @property
    def waiting_images(self) -> int:
        """Images in the queue."""


class Runtime(Protocol):
    """What is read of an engine."""

    @property
    def device(self) -> str:
        """cpu, cuda or tensorrt."""

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of it."""


class Loaded(Protocol):
    """What is read of a version that is served."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def batcher(self) -> Queue:
        """Where its images wait."""

    @property
    def engine(self) -> Runtime:
        """Where they run."""


class Entry(Protocol):
    """What is read of a version that is on disk."""

    @property
    def name(self) -> str:
        """Its model's."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def is_refused(self) -> bool:
        """Whether its files cannot be served as they are now."""


class Models(Protocol):
    """What is asked, at every scrape, what is loaded."""

    def loaded(self) -> Sequence[Loaded]:
        """Every version that is served."""

    def index(self) -> Sequence[Entry]:
        """Every version that is on disk, too.

        Raises:
            NotReadyError: nobody has looked yet.
        """


class ModelMetrics:
    """What the inference threads of one version tell; made by `Metrics.model`."""

    def __init__(self, waits: Histogram, computes: Histogram, batches: Histogram, restarts: Counter) -> None:
        self._waits = waits
        self._computes = computes
        self._batches = batches
        self._restarts = restarts

    def queued_for(self, seconds: float) -> None:
        """A request has waited this long for its first batch."""
        self._waits.observe(seconds)

    def ran(self, images: int, seconds: float) -> None:
        """A batch was computed."""
        self._batches.observe(images)
        self._computes.observe(seconds)

    def restarted(self) -> None:
        """A thread had died and there is a new one."""
        self._restarts.inc()


class Metrics:
    """The metrics of one application, in a registry of their own. Every method may be called from any thread.

    A labelled child costs a lock and a dictionary of strings to find, so each is looked up once and kept.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._by_status: dict[tuple[str, int], Counter] = {}
        self._by_route: dict[str, Histogram] = {}
        self._users: Tally[tuple[str, int]] = (
            Tally()
        )  # a version that is loaded anew is there twice for a while
        self._requests = self._counter("requests", "Requests answered", "route", "status")
        self._durations = self._histogram(
            "request_duration_seconds",
            "Time from a request's head to the end of its answer",
            REQUEST_S,
            "route",
        )
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
        self._restarts = self._counter(
            "inference_thread_restarts", "Inference threads that died and were replaced", "model"
        )
        ProcessCollector(registry=self._registry)

    def watch(self, models: Models) -> None:
        """Ask these models, at every scrape, what is loaded and what waits."""
        self._registry.register(_LoadedModels(models))

    def answered(self, route: str, status: int, seconds: float) -> None:
        """A request is over.

        Args:
            route: the template it matched, such as `/models/{name}`; never the path that came, of which there
                is no end.
            status: of the answer; 499 where the client hung up before it.
            seconds: how long it took.
        """
        counter = self._by_status.get((route, status))
        if counter is None:
            counter = self._by_status[route, status] = self._requests.labels(route, status)
            self._by_route[route] = self._durations.labels(route)
        counter.inc()
        self._by_route[route].observe(seconds)

    def model(self, name: str, version: int) -> ModelMetrics:
        """The metrics of a version, one call for each time it is loaded; `dropped` is the end of one."""
        self._users[name, version] += 1
        for events in (self._reloads, self._refusals, self._drops):
            events.labels(name)  # 0 from the start: a rate sees no first event of a series that began with it
        labels = (name, version)
        return ModelMetrics(
            self._waits.labels(*labels),
            self._computes.labels(*labels),
            self._batches.labels(*labels),
            self._restarts.labels(name),
        )

    def reloaded(self, model: str, version: int) -> None:
        """A version was loaded and takes traffic."""
        self._reloads.labels(model).inc()

    def refused(self, model: str, version: int) -> None:
        """A bundle could not be loaded."""
        self._refusals.labels(model).inc()

    def dropped(self, model: str, version: int) -> None:
        """A version was taken down; its series end, else each publication would leave some for ever."""
        self._drops.labels(model).inc()
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


class _LoadedModels(Collector):
    """Gauges of what is loaded at the moment of the scrape."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[GaugeMetricFamily]:
        loaded = self._models.loaded()
        yield _gauge(
            "capsnet_queue_images",
            "Images that wait for a batch",
            VERSION,
            (([one.model, str(one.version)], one.batcher.waiting_images) for one in loaded),
        )
        yield _gauge(
            "capsnet_model_loaded",
            "1 for every version that is served",
            (*VERSION, "device", "provider"),
            (([one.model, str(one.version), one.engine.device, one.engine.provider], 1) for one in loaded),
        )
        yield _gauge(
            "capsnet_model_refused",
            "1 for every version whose files cannot be served as they are now; /models says why",
            VERSION,
            (([one.name, str(one.version)], 1) for one in self._index() if one.is_refused),
        )

    def _index(self) -> Sequence[Entry]:
        try:
            return self._models.index()
        except NotReadyError:
            return ()


def _gauge(
    name: str, about: str, labels: Sequence[str], samples: Iterable[tuple[list[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


TEXT = {"text/plain": {"schema": {"type": "string"}}}


@routes.get("/metrics", summary="Prometheus", response_class=Response, responses={200: {"content": TEXT}})
async def get_metrics(request: Request) -> Response:
    """Requests, queues, batches, models and the process, in Prometheus' text format; needs no key."""
    metrics: Metrics = request.state.service.metrics
    return Response(metrics.scrape(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


answer_head(routes)
