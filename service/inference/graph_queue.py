"""The queue in front of one graph: the jobs that wait for it, and how many came together recently."""

import math
from collections import deque
from collections.abc import Callable

from service.inference.jobs import Arrays, Job, Slice
from service.inference.statistics import GraphStatistics

# Takes arrays [N, ...] and the keyword `exclusive`, whether the run has all cores; gives arrays [N, ...].
Run = Callable[..., Arrays]


class RecentPeak:
    """The largest recent value of a number, over one to two windows of time."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._began = -math.inf
        self._now = self._before = 0

    def note(self, at: float, value: int) -> None:
        """The number has this value, at a time.monotonic()."""
        self._turn(at)
        self._now = max(self._now, value)

    def at(self, at: float) -> int:
        """The largest value, seen from this time."""
        self._turn(at)
        return max(self._now, self._before)

    def _turn(self, at: float) -> None:
        """Begin another window once the present one is over, and forget values older than one window."""
        if at > self._began + self._window_s:
            self._before = self._now if at < self._began + 2 * self._window_s else 0
            self._began, self._now = at, 0


class GraphQueue:
    """Jobs that wait for one graph. Whoever calls it holds the batcher's lock.

    Args:
        run: the graph.
        large_batch_above: images in a batch above which each of them costs less; None if size matters little.
        max_batch: maximum images per run.
        recent_s: how many seconds are recent, see `concurrent`.

    Attributes:
        jobs: in their order; those of a large request go to the end after each batch.
        waiting: images that no thread has taken.
        concurrent: requests that recently waited or ran at the same time.
        wanted: images that a thread waits for, while it collects a large batch.
        statistics: of the graph; has a lock of its own.
    """

    def __init__(self, run: Run, large_batch_above: int | None, max_batch: int, recent_s: float) -> None:
        self.run = run
        self.large_batch_above = large_batch_above
        self.max_batch = max_batch
        self.jobs: deque[Job] = deque()
        self.waiting = 0
        self.concurrent = RecentPeak(recent_s)
        self.wanted = 0
        self.statistics = GraphStatistics()

    def put(self, job: Job) -> None:
        """Add a job, or the rest of one, at the end."""
        self.jobs.append(job)
        self.waiting += job.left

    def remove(self, job: Job) -> None:
        """Remove a job that nobody waits for any more, if it is here."""
        if job in self.jobs:
            self.jobs.remove(job)
            self.waiting -= job.left

    def take(self, batch: list[Slice], is_wanted: Callable[[Job], bool]) -> None:
        """Move the slices of one batch from the head of the queue.

        A job that fits a batch is not split. The job of the last slice may have images left; it is no longer
        in the queue, and its images do not count as waiting until it is put again.

        Args:
            batch: empty; gets them one by one, so that none is lost if the thread dies.
            is_wanted: whether anybody still waits for a job; others are dropped.
        """
        room = self.max_batch
        while self.jobs and room:
            job = self.jobs[0]
            is_taken = is_wanted(job)
            if is_taken and room < job.images <= self.max_batch:
                break
            self.waiting -= job.left  # all of it: the rest counts again when it is put back
            if is_taken:
                batch.append(job.take(min(room, job.left)))
                room -= batch[-1].images
            self.jobs.popleft()

    def clear(self) -> list[Job]:
        """Remove all jobs."""
        jobs = list(self.jobs)
        self.jobs.clear()
        self.waiting = 0
        return jobs
