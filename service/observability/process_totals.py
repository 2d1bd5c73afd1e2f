"""Processor time, memory and open files of all processes of a service, added up."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

CPU_SECONDS = "process_cpu_seconds_total"
CHILDREN = slice(13, 15)  # of the fields of /proc/PID/stat behind the name: in user mode, in the kernel
# Of these, the least one says most: when the oldest process began, and how many files each may open.
LEAST = frozenset({"process_start_time_seconds", "process_max_fds"})


class ProcessTotals(Collector):
    """The library's metrics of a process, of several: their sums.

    Processor time includes that of children which have ended: a counter may not fall when one is replaced.

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
                    more = _seconds_of_ended_children(pid) if sample.name == CPU_SECONDS else 0.0
                    found.setdefault(sample.name, (metric, []))[1].append(sample.value + more)
        for name, (metric, values) in found.items():
            value = min(values) if name in LEAST else sum(values)
            total = type(metric)(metric.name, metric.documentation, value=value)  # type: ignore[call-arg]
            yield total


def _seconds_of_ended_children(pid: int) -> float:
    """Processor time of the children that a process has waited for, and of theirs."""
    try:
        _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:  # it has ended
        return 0.0
    return sum(int(ticks) for ticks in fields.split()[CHILDREN]) / os.sysconf("SC_CLK_TCK")
