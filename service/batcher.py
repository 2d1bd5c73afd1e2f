"""One inference thread that runs whatever waits, in batches.

Greedy: the moment the thread is free it takes what is at the head of the queue, up to the largest batch, so
batches grow under load by themselves and a lone request waits for nothing. The queue is bounded in images.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import DeadlineExceededError, OverloadedError

# N images or poses of one job; a batch joins jobs along this axis.

Arrays = tuple[NDArray[np.float32], ...]
Run = Callable[..., Arrays]  # takes arrays [N, ...], gives arrays [N, ...]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    """At most `max_batch` images that go through one run together."""

    run: Run
    feeds: Arrays
    images: int
    deadline: float  # time.monotonic()
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Arrays]

    def finish(self, outcome: Arrays | Exception) -> None:
        """Hand the outcome to the waiting request, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._resolve, outcome)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("a result came after the event loop had closed")

    def _resolve(self, outcome: Arrays | Exception) -> None:
        if self.future.done():  # cancelled: the request gave up waiting
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Batcher:
    """A queue and the thread that empties it.

    Args:
        name: of the thread, for logs and debuggers.
        max_batch: images per run, at most.
        queue_images: images that may wait, at most.
        deadline_ms: how long a submission may take, in milliseconds.
    """

    def __init__(self, name: str, *, max_batch: int, queue_images: int, deadline_ms: int) -> None:
        self._name = name
        self._max_batch = max_batch
        self._queue_images = queue_images
        self._deadline_s = deadline_ms / 1000
        self._queue: deque[_Job] = deque()
        self._waiting = 0  # images in the queue
        self._changed = threading.Condition()
        self._closed = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"inference-{name}", daemon=True)
        self._thread.start()

    async def submit(self, run: Run, *feeds: NDArray[np.float32]) -> Arrays:
        """Run the graph on the feeds, float32 [N, ...] each with the same N, together with what else waits.

        Returns:
            The run's outputs, [N, ...] each.

        Raises:
            OverloadedError: the queue is full, or closed.
            DeadlineExceededError: no result within the deadline.
        """
        jobs = self._jobs(run, feeds)
        self._enqueue(jobs)
        try:
            async with asyncio.timeout(self._deadline_s):
                parts = await asyncio.gather(*(job.future for job in jobs))
        except TimeoutError:
            raise self._late() from None
        finally:
            for job in jobs:
                job.future.cancel()  # no effect on one that has its result; the thread skips the others
        return tuple(np.concatenate(outputs) for outputs in zip(*parts, strict=True))

    @property
    def answering(self) -> bool:
        """The thread lives and its present run has not taken longer than a request may wait."""
        since = self._busy_since
        return self._thread.is_alive() and (since is None or time.monotonic() - since < self._deadline_s)

    def close(self) -> None:
        """Finish the present run, refuse what still waits, end the thread. Blocks; may be called twice."""
        with self._changed:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._waiting = 0
            self._changed.notify()
        for job in left:
            job.finish(OverloadedError(f"{self._name} is being taken down; try again"))
        self._thread.join()

    def _jobs(self, run: Run, feeds: Arrays) -> list[_Job]:
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + self._deadline_s
        jobs = []
        for start in range(0, len(feeds[0]), self._max_batch):
            part = tuple(feed[start : start + self._max_batch] for feed in feeds)
            jobs.append(_Job(run, part, len(part[0]), deadline, loop, loop.create_future()))
        return jobs

    def _enqueue(self, jobs: list[_Job]) -> None:
        """All of the jobs or none."""
        images = sum(job.images for job in jobs)
        with self._changed:
            if self._closed:
                raise OverloadedError(f"{self._name} is being taken down; try again")
            if self._waiting + images > self._queue_images:
                raise OverloadedError(
                    f"{self._waiting} images wait already and the queue holds {self._queue_images}; "
                    f"there is no room for {images} more"
                )
            self._queue.extend(jobs)
            self._waiting += images
            self._changed.notify()

    def _work(self) -> None:
        while batch := self._next_batch():
            self._busy_since = time.monotonic()
            _run_batch(batch)
            self._busy_since = None

    def _next_batch(self) -> list[_Job]:
        """Wait for work; the jobs at the head of the queue that fit one run. Empty once closed."""
        with self._changed:
            batch: list[_Job] = []
            while not batch and not self._closed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                batch = self._take()
            return batch

    def _take(self) -> list[_Job]:
        batch: list[_Job] = []
        images = 0
        while self._queue:
            job = self._queue[0]
            if batch and (job.run != batch[0].run or images + job.images > self._max_batch):
                break
            self._queue.popleft()
            self._waiting -= job.images
            if job.future.done():
                continue
            if time.monotonic() > job.deadline:
                job.finish(self._late())
                continue
            batch.append(job)
            images += job.images
        return batch

    def _late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"no result within {self._deadline_s * 1000:.0f} ms; {self._waiting} images wait"
        )


def _run_batch(batch: list[_Job]) -> None:
    """Run the jobs together; if that fails, one by one, so that only what is at fault fails."""
    try:
        feeds = [np.concatenate(parts) for parts in zip(*(job.feeds for job in batch), strict=True)]
        outputs = batch[0].run(*feeds)
    except Exception as error:  # handed on to the requests, never swallowed
        if len(batch) > 1:
            log.warning("a batch of %d requests failed, running them one by one: %s", len(batch), error)
            for job in batch:
                _run_batch([job])
        else:
            batch[0].finish(error)
        return
    start = 0
    for job in batch:
        job.finish(tuple(output[start : start + job.images] for output in outputs))
        start += job.images
