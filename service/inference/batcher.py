"""A queue, and inference threads that run whatever waits in it, in batches.

Greedy: the moment a thread is free it takes what is at the head of the queue, up to the largest batch, so
batches grow under load by themselves and a lone request waits for nothing. The queue is bounded in images. A
request larger than a batch is run a batch at a time and goes to the end of the queue after each, so that it
never stands in front of the small ones.

On a CPU there are several threads, called lanes. A batch that runs alone has all cores to itself, which is
what a lone request wants; batches that run side by side have one share of them each, which keeps the cores
busy while one of the batches waits, for its slowest part or for a core that the event loop has taken. Where
there was company a moment ago a batch leaves room for more of it: one on all cores and another beside it are
slower than two that share.

An image in a large batch costs a fraction of one that is alone. So where many requests are on their way, a
lane does not set off with the first that comes: it gathers for some milliseconds, until there are as many as
there were a moment ago, and runs them with all cores. Where they are more than a batch holds, each lane
gathers its share of them. Where there are few nobody waits.

Whatever happens, every request gets its outcome: a batch that fails is run again one request at a time, so
that only the one at fault fails; a thread that dies takes only its present batch with it, and is restarted.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.errors import DeadlineExceededError, OverloadedError

# N images or poses of one request; a batch joins requests along this axis.

Arrays = tuple[NDArray[np.float32], ...]
# Takes arrays [N, ...] and the keyword `alone`, whether all cores are its own; gives arrays [N, ...].
Run = Callable[..., Arrays]

COMPANY_S = 0.05  # about the time of a large batch; for so long it is expected back
GATHER_S = 0.01  # how long a lane that could have a large batch waits for it
ALONE_IMAGES = 16  # of more than that on all cores, two batches side by side are faster
RESTARTS = 3  # of a dead thread, within the time below; one that keeps dying is left dead
RESTARTS_WITHIN_S = 60.0

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Is told what happens, from the inference thread."""

    def queued_for(self, seconds: float) -> None:
        """A request has waited this long for its first batch."""

    def ran(self, images: int, seconds: float) -> None:
        """A batch was computed."""

    def restarted(self) -> None:
        """The thread had died and there is a new one."""


@dataclass(eq=False)
class _Job:
    """A request's images: `images` of them, of which `taken` are in a batch or behind one.

    Attributes:
        outputs: of its slices so far, by the slice's first image; belongs to the event loop.
    """

    run: Run
    feeds: Arrays
    images: int
    arrived: float  # time.monotonic()
    deadline: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Arrays]
    taken: int = 0
    outputs: dict[int, Arrays] = field(default_factory=dict)

    def deliver(self, start: int, outputs: Arrays) -> None:
        """Hand over the outputs of the slice that begins with image `start`, from any thread."""
        self._call(self._collect, start, outputs)

    def fail(self, error: Exception) -> None:
        """Hand over the error that the request ends with, from any thread."""
        self._call(self._end, error)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("a result came after the event loop had closed")

    def _collect(self, start: int, outputs: Arrays) -> None:
        if self.future.done():  # cancelled, or another slice has failed
            return
        if len(outputs[0]) == self.images:
            self.future.set_result(outputs)
            return
        self.outputs[start] = outputs
        if sum(len(part[0]) for part in self.outputs.values()) == self.images:
            in_order = [self.outputs[first] for first in sorted(self.outputs)]
            self.future.set_result(tuple(np.concatenate(parts) for parts in zip(*in_order, strict=True)))

    def _end(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True)
class _Slice:
    """Images of a job that go through one run together."""

    job: _Job
    start: int
    images: int

    @property
    def feeds(self) -> Arrays:
        if self.images == self.job.images:
            return self.job.feeds
        return tuple(feed[self.start : self.start + self.images] for feed in self.job.feeds)


@dataclass(eq=False)
class _Lane:
    """An inference thread and what it is at.

    Attributes:
        wake: notified when there is work for it while it sleeps.
        batch: what it has taken and not yet finished.
        busy_since: time.monotonic() of the beginning of its present batch.
        is_alone: its present batch has all cores.
    """

    number: int
    wake: threading.Condition
    thread: threading.Thread | None = None
    batch: list[_Slice] = field(default_factory=list)
    busy_since: float | None = None
    is_alone: bool = True


class _Peak:
    """The largest of a number's values of late, which is between one and two windows long."""

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
        """Begin another window once the present one is over; what is older than one is forgotten."""
        if at > self._began + self._window_s:
            self._before = self._now if at < self._began + 2 * self._window_s else 0
            self._began, self._now = at, 0


class Batcher:
    """A queue and the threads that empty it.

    Args:
        name: of the threads, for logs and debuggers.
        lanes: threads.
        max_batch: images per run, at most.
        gather_above: images in a batch above which each of them costs less; None if size matters little.
        queue_images: images that may wait, at most.
        deadline_ms: how long a submission may take, in milliseconds.
        observer: is told waits and batches.
    """

    def __init__(
        self,
        name: str,
        *,
        lanes: int,
        max_batch: int,
        gather_above: int | None,
        queue_images: int,
        deadline_ms: int,
        observer: Observer,
    ) -> None:
        self._name = name
        self._max_batch = max_batch
        self._gather_above = gather_above
        self._queue_images = queue_images
        self._deadline_s = deadline_ms / 1000
        self._observer = observer
        self._queue: deque[_Job] = deque()
        self._waiting = 0  # images in the queue that no batch has taken
        self._lock = threading.Lock()  # guards all of the above and below
        self._closed = False
        self._deaths: deque[float] = deque()
        self._lanes = [_Lane(number, threading.Condition(self._lock)) for number in range(lanes)]
        # The one that fell asleep last wakes first: its caches are warm, and its session's scratch memory.
        self._asleep: list[_Lane] = []
        self._company_at = -math.inf  # time.monotonic() when there was last work for more than one lane
        self._crowd = _Peak(COMPANY_S)  # requests that wait or are run
        self._gathering: _Lane | None = None
        self._gathered = 0  # how many images that lane waits for
        for lane in self._lanes:
            self._start(lane)

    async def submit(self, run: Run, *feeds: NDArray[np.float32]) -> Arrays:
        """Run the graph on the feeds, float32 [N, ...] each with the same N, together with what else waits.

        Returns:
            The run's outputs, [N, ...] each.

        Raises:
            OverloadedError: the queue is full or closed, or the inference thread died.
            DeadlineExceededError: no result within the deadline.
        """
        loop, now = asyncio.get_running_loop(), time.monotonic()
        job = _Job(run, feeds, len(feeds[0]), now, now + self._deadline_s, loop, loop.create_future())
        self._enqueue(job)
        timer = loop.call_later(self._deadline_s, lambda: job.fail(self._late()))
        try:
            return await job.future
        finally:
            timer.cancel()
            job.future.cancel()  # no effect on one that has its result; the thread skips the others

    @property
    def waiting_images(self) -> int:
        """Images in the queue."""
        return self._waiting

    @property
    def answering(self) -> bool:
        """Every thread lives and has not been at its present batch for longer than a request may wait."""
        long_ago = time.monotonic() - self._deadline_s
        return not self.given_up and all(
            _is_alive(lane) and (lane.busy_since or long_ago + 1) > long_ago for lane in self._lanes
        )

    @property
    def given_up(self) -> bool:
        """The threads have died more often than they are restarted."""
        return len(self._deaths) > RESTARTS

    def close(self) -> None:
        """Finish the present runs, refuse what still waits, end the threads. Blocks; may be called twice.

        A thread that is stuck in its run for longer than a request may wait is left behind.
        """
        with self._lock:
            self._closed = True
            left = self._empty()
            while self._asleep:
                self._wake_one()
            if self._gathering:
                self._gathering.wake.notify()
        for job in left:
            job.fail(OverloadedError(f"{self._name} is being taken down; try again"))
        until = time.monotonic() + self._deadline_s
        for lane in self._lanes:
            if lane.thread:
                lane.thread.join(max(0.0, until - time.monotonic()))

    def _enqueue(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise OverloadedError(f"{self._name} is being taken down; try again")
            if self.given_up:
                raise self._died()
            if self._waiting + job.images > self._queue_images:
                raise OverloadedError(
                    f"{self._waiting} images wait already and the queue holds {self._queue_images}; "
                    f"there is no room for {job.images} more"
                )
            self._queue.append(job)
            self._waiting += job.images
            self._crowd.note(job.arrived, len(self._queue) + sum(len(lane.batch) for lane in self._lanes))
            if not self._gathering:
                self._wake_one()
            elif self._waiting >= self._gathered:
                self._gathering.wake.notify()

    def _wake_one(self) -> None:
        if self._asleep:
            self._asleep.pop().wake.notify()

    def _empty(self) -> list[_Job]:
        left = list(self._queue)
        self._queue.clear()
        self._waiting = 0
        return left

    # -- the threads ------------------------------------------------------------------------------------

    def _start(self, lane: _Lane) -> None:
        name = f"inference-{self._name}-{lane.number}"
        lane.thread = threading.Thread(target=self._live, args=[lane], name=name, daemon=True)
        lane.thread.start()

    def _live(self, lane: _Lane) -> None:
        """Work until closed; should the thread die all the same, nobody is left waiting for it."""
        try:
            while self._take_batch(lane):
                self._run(lane, lane.batch)
                lane.batch, lane.busy_since = [], None
        except BaseException:  # what is no Exception ends threads: SystemExit, or one raised from outside
            log.critical("an inference thread of %s died", self._name, exc_info=True)
            self._bury(lane)

    def _bury(self, lane: _Lane) -> None:
        """Answer the dead thread's batch, then put a new thread in its place, unless they keep dying."""
        with self._lock:
            now = time.monotonic()
            self._deaths.append(now)
            while self._deaths[0] < now - RESTARTS_WITHIN_S:
                self._deaths.popleft()
            left = [part.job for part in lane.batch]
            lane.batch, lane.busy_since = [], None
            if lane in self._asleep:  # it died there
                self._asleep.remove(lane)
            if lane is self._gathering:
                self._gathering = None
            if self.given_up:
                left += self._empty()
            self._waiting = sum(job.images - job.taken for job in self._queue)
        for job in left:
            job.fail(self._died())
        if self.given_up:
            log.critical("the inference threads of %s keep dying; this one is left dead", self._name)
        elif not self._closed:
            self._observer.restarted()
            self._start(lane)

    def _take_batch(self, lane: _Lane) -> bool:
        """Wait for work and take what fits one run; False once closed."""
        with self._lock:
            while not lane.batch and not self._closed:
                if not self._queue or self._gathering:
                    self._asleep.append(lane)
                    lane.wake.wait_for(lambda: lane not in self._asleep)
                    continue
                self._gather(lane)
                self._take(lane.batch)
            now = time.monotonic()
            if self._queue or any(other.busy_since for other in self._lanes):
                self._company_at = now
            lane.busy_since, lane.is_alone = now, now > self._company_at + COMPANY_S
            if self._queue:  # such as the rest of a large request: a lane that sleeps may take it
                self._wake_one()
        return bool(lane.batch)

    def _gather(self, lane: _Lane) -> None:
        """Wait for a large batch where one can be had: of all that are on their way, else of a share."""
        if self._gather_above is None:
            return
        crowd = self._crowd.at(time.monotonic())
        takes_all = crowd <= min(self._max_batch, ALONE_IMAGES)
        images = crowd if takes_all else min(self._max_batch, crowd // len(self._lanes))
        if images > self._gather_above:
            self._gathering, self._gathered = lane, images
            self._wait_for(lane, images, while_others_run=takes_all)
            self._gathering = None

    def _wait_for(self, lane: _Lane, images: int, *, while_others_run: bool) -> None:
        """Wait for so many images, for GATHER_S; if asked, what others run now is waited for first."""
        now = time.monotonic()
        until, latest = now + GATHER_S, now + COMPANY_S
        while self._waiting < images and now < until and not self._closed:
            lane.wake.wait(until - now)
            now = time.monotonic()
            if while_others_run and any(other.busy_since for other in self._lanes):
                until = min(now + GATHER_S, latest)

    def _take(self, batch: list[_Slice]) -> None:
        """From the head of the queue on; what is left of a large request goes to the queue's end."""
        others: list[_Job] = []  # of another graph: they stay, in their order
        unfinished: list[_Job] = []
        room = self._max_batch
        while self._queue and room:
            job = self._queue.popleft()
            if self._is_given_up(job):
                continue
            fits = job.images <= room or job.images > self._max_batch
            if not fits or (batch and job.run != batch[0].job.run):
                others.append(job)
                if not fits:
                    break
                continue
            part = _Slice(job, job.taken, min(room, job.images - job.taken))
            batch.append(part)
            job.taken += part.images
            room -= part.images
            self._waiting -= part.images
            if part.start == 0:
                self._observer.queued_for(time.monotonic() - job.arrived)
            if job.taken < job.images:
                unfinished.append(job)
        self._queue.extendleft(reversed(others))
        self._queue.extend(unfinished)

    def _is_given_up(self, job: _Job) -> bool:
        """Nobody waits for the job any more, or it is too late for it."""
        late = time.monotonic() > job.deadline
        if not late and not job.future.done():
            return False
        self._waiting -= job.images - job.taken
        if late:
            job.fail(self._late())
        return True

    def _run(self, lane: _Lane, batch: Sequence[_Slice]) -> None:
        """Run slices together; if that fails, one by one, so that only the request at fault fails."""
        began = time.monotonic()
        try:
            outputs = batch[0].job.run(*_joined(batch), alone=lane.is_alone)
        except Exception as error:  # handed on to the requests, never swallowed
            if len(batch) == 1:
                batch[0].job.fail(error)
                return
            log.warning("a batch of %d requests failed, running them one by one: %s", len(batch), error)
            for part in batch:
                self._run(lane, [part])
            return
        self._observer.ran(sum(part.images for part in batch), time.monotonic() - began)
        first = 0
        for part in batch:
            part.job.deliver(part.start, tuple(output[first : first + part.images] for output in outputs))
            first += part.images

    def _late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"no result within {self._deadline_s * 1000:.0f} ms; {self._waiting} images wait"
        )

    def _died(self) -> OverloadedError:
        return OverloadedError(f"an inference thread of {self._name} died; try again")


def _is_alive(lane: _Lane) -> bool:
    return lane.thread is not None and lane.thread.is_alive()


def _joined(batch: Sequence[_Slice]) -> Sequence[NDArray[np.float32]]:
    if len(batch) == 1:
        return batch[0].feeds
    return [np.concatenate(parts) for parts in zip(*(part.feeds for part in batch), strict=True)]
