"""Threads that run the graphs of one model version, in batches of whatever waits for them.

Each graph has a queue. The moment a thread is free it takes the job that has waited longest, and with it
others of the same graph, up to the largest batch. So batches grow under load by themselves, and a lone
request waits for nothing. All queues together are bounded in images. A request larger than a batch is run a
batch at a time and goes to the end of its queue after each, so that it does not delay small ones.

On a CPU there are several threads. A batch may run exclusively, with all cores, which is fastest for a lone
request; or batches share the cores, which keeps them busy while one of the batches waits, for its slowest
part or for a core that the event loop has taken. If cores were shared a moment ago, a batch does not take
them all: one on all cores with another beside it is slower than two that share.

An image in a large batch costs a fraction of a single one. So where many requests come at the same time, a
thread does not start with the first of them: for some milliseconds, the batch window, it waits until there
are as many as there were a moment ago, and runs them with all cores. If that is more than a batch holds, each
thread waits for its share of them. Where there are few requests, nobody waits.

Every request gets a result or an error, whatever happens: if a batch fails, its requests are run one at a
time, so that only the one at fault fails. If a thread dies, which only a fault of this code can bring about,
its batch and all that wait are refused, and the service ends, to be started again.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from service.errors import DeadlineExceededError, OverloadedError, Unfinished
from service.inference.graph_queue import GraphQueue, Run
from service.inference.jobs import Arrays, Job, Slice, deliver, join
from service.observability.metrics import ModelMetrics
from service.observability.timings import timings_of_request

RECENT_S = 0.05  # about the time of a large batch: clients that it answers are back by then
BATCH_WINDOW_S = 0.01  # how long a thread waits for a large batch; RECENT_S if other batches run meanwhile
EXCLUSIVE_IMAGES = 16  # with more than that, two batches that share the cores are faster than one

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Runner:
    """An inference thread and what it does.

    Attributes:
        wake: notified when there is work for it while it sleeps or collects.
        queue: of the graph that it runs, ran, or collects for.
        batch: what it has taken and not yet finished.
        is_collecting: it waits for a large batch.
        busy_since: time.monotonic() of the start of its batch; None while it has none.
        is_exclusive: its batch has all cores.
    """

    number: int
    wake: threading.Condition
    thread: threading.Thread | None = None
    queue: GraphQueue | None = None
    batch: list[Slice] = field(default_factory=list)
    is_collecting: bool = False
    busy_since: float | None = None
    is_exclusive: bool = True

    @property
    def is_alive(self) -> bool:
        """Whether it has a thread that runs."""
        return self.thread is not None and self.thread.is_alive()


class Batcher:
    """The queues of a model version's graphs and the threads that empty them.

    Args:
        name: of the threads, for logs and debuggers.
        parallel_batches: how many threads, each of which runs a batch at a time.
        max_batch: maximum images per run.
        queue_images: maximum images that wait, in all queues together.
        deadline_ms: how long a submission may take, in milliseconds.
        metrics: of the model version, told waits and batches.

    Attributes:
        given_up: a thread has died. No request is taken any more; only a new process helps.

    Raises:
        RuntimeError: the system has no more threads.
    """

    def __init__(
        self,
        name: str,
        *,
        parallel_batches: int,
        max_batch: int,
        queue_images: int,
        deadline_ms: int,
        metrics: ModelMetrics,
    ) -> None:
        self._name = name
        self._max_batch = max_batch
        self._queue_images = queue_images
        self._deadline_s = deadline_ms / 1000
        self._metrics = metrics
        self._tickets = count()
        self._queues: list[GraphQueue] = []
        self._lock = threading.Lock()  # guards all of the above and below
        self._stopped = False  # closed or given up
        self.given_up = False
        self._runners = [
            _Runner(number, threading.Condition(self._lock)) for number in range(parallel_batches)
        ]
        # The one that fell asleep last wakes first: its caches are warm, and its session's scratch memory.
        self._asleep: list[_Runner] = []
        self._shared_at = -math.inf  # time.monotonic() when there was last work for more than one runner
        try:
            for runner in self._runners:
                self._start(runner)
        except RuntimeError:
            self.close()
            raise

    def add_graph(
        self, run: Run, large_batch_above: int | None = None, max_batch: int | None = None
    ) -> GraphQueue:
        """A queue in front of another graph.

        Args:
            run: the graph.
            large_batch_above: images in a batch above which each of them costs less; None if size matters
                little.
            max_batch: maximum images per run of this graph, if it takes fewer than others.
        """
        max_batch = min(max_batch or self._max_batch, self._max_batch)
        queue = GraphQueue(run, large_batch_above, max_batch, RECENT_S)
        with self._lock:
            self._queues.append(queue)
        return queue

    async def submit(self, queue: GraphQueue, *feeds: NDArray[np.float32]) -> Arrays:
        """Run the queue's graph on feeds, float32 [N, ...] each, in batches with other jobs that wait for it.

        Returns:
            The outputs, [N, ...] each.

        Raises:
            OverloadedError: the queues are full or closed, or an inference thread died.
            DeadlineExceededError: no result within the deadline.
        """
        loop, now = asyncio.get_running_loop(), time.monotonic()
        job = Job(feeds, len(feeds[0]), now, now + self._deadline_s, loop, loop.create_future())
        try:
            outputs = await self._result(queue, job)
        except (asyncio.CancelledError, Exception):
            queue.statistics.failed(time.monotonic() - now)
            raise
        queue.statistics.succeeded(job.images, time.monotonic() - now)
        return outputs

    @property
    def waiting_images(self) -> int:
        """Images in the queues."""
        return sum(queue.waiting for queue in self._queues)

    @property
    def answering(self) -> bool:
        """Every thread is alive, and its batch has not taken longer than a request may wait."""
        long_ago = time.monotonic() - self._deadline_s
        return not self.given_up and all(
            runner.is_alive and (runner.busy_since is None or runner.busy_since > long_ago)
            for runner in self._runners
        )

    def close(self) -> None:
        """Finish the current runs, refuse what still waits, end the threads. Blocks; may be called twice.

        A thread that is stuck in its run for longer than a request may wait is left behind.
        """
        with self._lock:
            left = self._stop()
        for job in left:
            job.fail(self._taken_down())
        until = time.monotonic() + self._deadline_s
        for runner in self._runners:
            if runner.thread:
                runner.thread.join(max(0.0, until - time.monotonic()))

    async def _result(self, queue: GraphQueue, job: Job) -> Arrays:
        self._enqueue(queue, job)
        timer = job.loop.call_later(self._deadline_s, lambda: job.fail(self._late(job)))
        try:
            return await job.future
        except asyncio.CancelledError:  # at its request's deadline, or by the client
            raise asyncio.CancelledError(self._unfinished(job)) from None
        finally:
            if timings := timings_of_request():
                timings.add(*job.parts())
            timer.cancel()
            job.future.cancel()  # no effect on a result
            if job.left:
                with self._lock:  # it takes the place of no other
                    queue.remove(job)

    def _enqueue(self, queue: GraphQueue, job: Job) -> None:
        with self._lock:
            if self._stopped:
                raise self._died() if self.given_up else self._taken_down()
            waiting = self.waiting_images
            if waiting + job.images > self._queue_images:
                raise OverloadedError(
                    f"{waiting} images wait already and the queue holds {self._queue_images}; "
                    f"there is no room for {job.images} more"
                )
            self._put(queue, job)
            users = [runner for runner in self._runners if runner.queue is queue]
            # Not those that are answered: a client may be back before the thread has let go of its batch.
            running = sum(not part.job.future.done() for runner in users for part in runner.batch)
            queue.concurrent.note(job.arrived, len(queue.jobs) + running)
            collecting = next((runner for runner in users if runner.is_collecting), None)
            if collecting is None:
                self._wake_one()
            elif queue.waiting >= queue.wanted:
                collecting.wake.notify()

    def _put(self, queue: GraphQueue, job: Job) -> None:
        job.ticket = next(self._tickets)
        queue.put(job)

    def _wake_one(self) -> None:
        if self._asleep:
            self._asleep.pop().wake.notify()

    def _stop(self) -> list[Job]:
        """Let every thread end after its batch; returns the jobs that wait, for the caller to fail."""
        self._stopped = True
        while self._asleep:
            self._wake_one()
        for runner in self._runners:
            if runner.is_collecting:
                runner.wake.notify()
        return [job for queue in self._queues for job in queue.clear()]

    # -- the threads ------------------------------------------------------------------------------------

    def _start(self, runner: _Runner) -> None:
        name = f"inference-{self._name}-{runner.number}"
        thread = threading.Thread(target=self._work, args=[runner], name=name, daemon=True)
        thread.start()
        runner.thread = thread

    def _work(self, runner: _Runner) -> None:
        """Run batches until stopped; if the thread dies, nobody is left waiting for it."""
        try:
            while queue := self._take_batch(runner):
                self._run(queue, runner.batch, exclusive=runner.is_exclusive)
                runner.batch, runner.busy_since = [], None
        except BaseException:  # of this code: what a graph raises is handed to its requests
            log.critical("an inference thread of %s died", self._name, exc_info=True)
            self._give_up(runner)

    def _give_up(self, runner: _Runner) -> None:
        """Answer the dead thread's batch and whatever waits; the other threads end after their batches."""
        with self._lock:
            self.given_up = True
            left = [*(part.job for part in runner.batch), *self._stop()]
        for job in left:
            job.fail(self._died())

    def _take_batch(self, runner: _Runner) -> GraphQueue | None:
        """Wait for work and take a batch of it; returns the batch's queue, None once stopped."""
        with self._lock:
            while not runner.batch and not self._stopped:
                runner.queue = self._next_queue()
                if runner.queue is None:
                    self._asleep.append(runner)
                    runner.wake.wait_for(lambda: runner not in self._asleep)
                    continue
                self._collect(runner, runner.queue)
                self._take(runner, runner.queue)
            now = time.monotonic()
            if any(queue.jobs for queue in self._queues) or self._is_any_busy():
                self._shared_at = now
            runner.busy_since, runner.is_exclusive = now, now > self._shared_at + RECENT_S
            if self._next_queue():  # such as the rest of a large request
                self._wake_one()
            return runner.queue if runner.batch else None

    def _next_queue(self) -> GraphQueue | None:
        """The queue whose first job is next, except those for which another thread collects a batch."""
        waiting = [queue for queue in self._queues if queue.jobs and not self._is_collected(queue)]
        return min(waiting, key=lambda queue: queue.jobs[0].ticket, default=None)

    def _is_collected(self, queue: GraphQueue) -> bool:
        return any(runner.is_collecting and runner.queue is queue for runner in self._runners)

    def _is_any_busy(self) -> bool:
        return any(runner.busy_since for runner in self._runners)

    def _collect(self, runner: _Runner, queue: GraphQueue) -> None:
        """Wait for a large batch if there can be one: of all concurrent requests, else of a share of them."""
        if queue.large_batch_above is None:
            return
        concurrent = queue.concurrent.at(time.monotonic())
        takes_all = concurrent <= min(queue.max_batch, EXCLUSIVE_IMAGES)
        images = concurrent if takes_all else min(queue.max_batch, concurrent // len(self._runners))
        if images > queue.large_batch_above:
            runner.is_collecting, queue.wanted = True, images
            self._wait_for_images(runner, queue, while_others_run=takes_all)
            runner.is_collecting = False

    def _wait_for_images(self, runner: _Runner, queue: GraphQueue, *, while_others_run: bool) -> None:
        """Wait for the wanted images for BATCH_WINDOW_S, which may begin when others have finished."""
        now = time.monotonic()
        until, latest = now + BATCH_WINDOW_S, now + RECENT_S
        while queue.waiting < queue.wanted and now < until and not self._stopped:
            runner.wake.wait(until - now)
            now = time.monotonic()
            if while_others_run and self._is_any_busy():
                until = min(now + BATCH_WINDOW_S, latest)

    def _take(self, runner: _Runner, queue: GraphQueue) -> None:
        """Take a batch from a queue; what is left of a large request goes to the queue's end."""
        queue.take(runner.batch, self._is_wanted)
        now, batch_images = time.monotonic(), sum(part.images for part in runner.batch)
        for part in runner.batch:
            if part.start == 0:
                part.job.batch_images, part.job.started = batch_images, now
                self._metrics.queued_for(now - part.job.arrived)
                queue.statistics.queued_for(now - part.job.arrived)
        if runner.batch and runner.batch[-1].job.left:
            self._put(queue, runner.batch[-1].job)

    def _is_wanted(self, job: Job) -> bool:
        """Somebody still waits for the job, and it is not too late for it."""
        if time.monotonic() > job.deadline:
            job.fail(self._late(job))
            return False
        return not job.future.done()

    def _run(self, queue: GraphQueue, batch: Sequence[Slice], *, exclusive: bool) -> None:
        """Run slices together; if that fails, one by one, so that only the request at fault fails."""
        began = time.monotonic()
        try:
            feeds = join(batch)
            joined = time.monotonic()
            outputs = queue.run(*feeds, exclusive=exclusive)
        except Exception as error:  # handed on to the requests, never swallowed
            if len(batch) == 1:
                batch[0].job.fail(error)
                return
            log.warning("a batch of %d requests failed, running them one by one: %s", len(batch), error)
            for part in batch:
                self._run(queue, [part], exclusive=exclusive)
            return
        ended, images = time.monotonic(), sum(part.images for part in batch)
        self._metrics.ran(images, ended - began)
        deliver(batch, outputs)
        begun = sum(part.start == 0 for part in batch)
        seconds = (joined - began, ended - joined, time.monotonic() - ended)
        queue.statistics.ran(images, begun, len(batch), seconds)

    def _late(self, job: Job) -> DeadlineExceededError:
        limit_ms = self._deadline_s * 1000
        return DeadlineExceededError(f"no result within {limit_ms:.0f} ms; {self._unfinished(job)}")

    def _unfinished(self, job: Job) -> Unfinished:
        if job.started is not None:
            return Unfinished(f"{self._name} was computing")
        return Unfinished(f"{self.waiting_images} images wait for {self._name}")

    def _taken_down(self) -> OverloadedError:
        return OverloadedError(f"{self._name} is being taken down; try again")

    def _died(self) -> OverloadedError:
        return OverloadedError(f"an inference thread of {self._name} died; try again")
