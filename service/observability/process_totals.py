"""Processor time, memory and open files of all processes of a service, added up."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

# Of these, the least one says most: when the oldest process began, and how many files each may open.
LEAST = frozenset({"process_start_time_seconds", "process_max_fds"})


class ProcessTotals(Collector):
    """The library's metrics of a process, of several: their sums.

    Args:
        pids: the processes; those that have ended are left out.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids

    def collect(self) -> Iterator[Metric]:
        """One sample for each metric."""
        found: dict[str, tuple[Metric, list[float]]] = {}
        for pid in self._pids():
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                for sample in metric.samples:
                    found.setdefault(sample.name, (metric, []))[1].append(sample.value)
        for name, (metric, values) in found.items():
            value = min(values) if name in LEAST else sum(values)
            total = type(metric)(metric.name, metric.documentation, value=value)  # type: ignore[call-arg]
            yield total
