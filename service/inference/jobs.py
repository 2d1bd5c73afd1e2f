"""A request's images on their way through the batcher, and their slices, which share runs with others."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from service.observability.timings import Part

# N images or poses of one request; a batch joins requests along this axis.

Arrays = tuple[NDArray[np.float32], ...]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A request's images.

    Attributes:
        feeds: the graph's inputs, [N, ...] each.
        images: N.
        arrived: time.monotonic().
        deadline: time.monotonic() after which nobody waits for it.
        started: time.monotonic() of the first batch with images of it; None if it still waits.
        batch_images: images in that batch.
        taken: images that a thread has taken so far.
        ticket: its place among all jobs of a batcher; the lowest is next.
        outputs: of its slices so far, by the slice's first image; belongs to the event loop.
    """

    feeds: Arrays
    images: int
    arrived: float
    deadline: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Arrays]
    started: float | None = None
    batch_images: int = 0
    taken: int = 0
    ticket: int = 0
    outputs: dict[int, Arrays] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Images that no thread has taken."""
        return self.images - self.taken

    def parts(self) -> list[Part]:
        """How long it has waited and been computed till now."""
        now = time.monotonic()
        if self.started is None:
            return [Part("queue", self.arrived, now)]
        return [
            Part("queue", self.arrived, self.started),
            Part("compute", self.started, now, self.batch_images),
        ]

    def take(self, images: int) -> "Slice":
        """The next images, for one run."""
        taken = Slice(self, self.taken, images)
        self.taken += images
        return taken

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
class Slice:
    """Images of a job that go through one run together."""

    job: Job
    start: int
    images: int

    @property
    def feeds(self) -> Arrays:
        """The graph's inputs, [images, ...] each."""
        if self.images == self.job.images:
            return self.job.feeds
        return tuple(feed[self.start : self.start + self.images] for feed in self.job.feeds)


def join(batch: Sequence[Slice]) -> Sequence[NDArray[np.float32]]:
    """The feeds of a batch's slices, concatenated."""
    if len(batch) == 1:
        return batch[0].feeds
    return [np.concatenate(parts) for parts in zip(*(part.feeds for part in batch), strict=True)]


def deliver(batch: Sequence[Slice], outputs: Arrays) -> None:
    """Hand each job its part of a run's outputs."""
    first = 0
    for part in batch:
        part.job.deliver(part.start, tuple(output[first : first + part.images] for output in outputs))
        first += part.images
