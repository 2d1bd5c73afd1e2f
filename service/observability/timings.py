"""Where the time of a request goes: the parts of its way, which logs, headers and traces read.

A route marks the end of each part. What runs the model adds how long its images waited and were computed. It
all belongs to the request's task and the tasks that it starts.
"""

from contextvars import ContextVar
from time import monotonic
from typing import NamedTuple

MS = 1000.0


class Part(NamedTuple):
    """A part of a request's way.

    Attributes:
        begin: seconds of the monotonic clock, as is end.
        batch_images: of a computation: images in its first batch, those of other requests among them.
    """

    name: str
    begin: float
    end: float
    batch_images: int | None = None


class Timings:
    """The parts of one request so far, in order.

    Attributes:
        began: when its head had come, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.began = self._last = monotonic()
        self.parts: list[Part] = []

    def end(self, name: str) -> None:
        """The part of this name is over; it began with the end of the one before."""
        now = monotonic()
        self.parts.append(Part(name, self._last, now))
        self._last = now

    def add(self, *parts: Part) -> None:
        """Parts that were measured elsewhere; the next one begins now."""
        self.parts += parts
        self._last = monotonic()

    def header(self) -> bytes:
        """For Server-Timing: milliseconds of each part, those of one name added up, and of all till now."""
        sums: dict[str, float] = {}
        for name, begin, end, _ in self.parts:
            sums[name] = sums.get(name, 0.0) + end - begin
        sums["total"] = monotonic() - self.began
        return ", ".join(f"{name};dur={seconds * MS:.3f}" for name, seconds in sums.items()).encode()


_current: ContextVar[Timings | None] = ContextVar("timings", default=None)


def begin_timings() -> Timings:
    """The timings of a new request, which is what this task works on from now on."""
    timings = Timings()
    _current.set(timings)
    return timings


def timings_of_request() -> Timings | None:
    """Those of the request that this task works on; None if it works on none."""
    return _current.get()


def end_part(name: str) -> None:
    """The part of this name is over, if this task works on a request."""
    if timings := _current.get():
        timings.end(name)
