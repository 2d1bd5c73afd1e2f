"""Gauges of what is loaded and what waits, read when Prometheus asks."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from service.errors import NotReadyError
from service.models.index_entry import IndexEntry
from service.models.repository import Repository
from service.observability.metrics import VERSION


class ModelGauges(Collector):
    """What is loaded at the moment of the scrape."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges, each with a sample for every version."""
        loaded = self._repository.loaded()
        yield _gauge(
            "capsnet_queue_images",
            "Images that wait for a batch",
            VERSION,
            (([one.name, str(one.version)], one.batcher.waiting_images) for one in loaded),
        )
        yield _gauge(
            "capsnet_model_loaded",
            "1 for every version that is served",
            (*VERSION, "device", "provider"),
            (([one.name, str(one.version), one.engine.device, one.engine.provider], 1) for one in loaded),
        )
        yield _gauge(
            "capsnet_model_refused",
            "1 for every version whose files cannot be served as they are now; /models says why",
            VERSION,
            (([one.name, str(one.version)], 1) for one in self._index() if one.is_refused),
        )

    def _index(self) -> Sequence[IndexEntry]:
        try:
            return self._repository.index()
        except NotReadyError:
            return ()


def _gauge(
    name: str, about: str, labels: Sequence[str], samples: Iterable[tuple[list[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
