"""Threads that decode and encode pictures; requests take turns in using them.

A request of many pictures waits for one turn at a time; after it, its next turn comes after those of the
requests that have arrived meanwhile. So a large request takes longer beside others, and small ones do not
wait for all of it. Threads for which no request waits help requests that have more to do.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier
from typing import Any, ParamSpec, TypeVar

from service.errors import OverloadedError, Unfinished

TURN_S = 0.005  # a turn takes one picture, and more until this time is over

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class _Job:
    """The calls of a request: `left` by their index, while `threads` of the pool work on others.

    Threads of the pool take from `left` and write to `results` and `errors`; the event loop owns the rest.
    """

    left: deque[tuple[int, Callable[[], Any]]]
    over: asyncio.Future[None]
    threads: int = 0
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    def take_turn(self) -> None:
        """Make calls until the turn is over or one fails. Blocks."""
        ends_at = time.perf_counter() + TURN_S
        while self.left:
            try:
                index, call = self.left.popleft()
            except IndexError:  # another thread has taken the last one
                return
            try:
                self.results[index] = call()
            except Exception as error:
                self.errors[index] = error
                self.left.clear()
            if time.perf_counter() >= ends_at:
                return

    def end(self) -> None:
        """Wake whoever waits for it, if anybody does."""
        if self.over.done():  # cancelled
            return
        if self.errors:
            self.over.set_exception(self.errors[min(self.errors)])
        else:
            self.over.set_result(None)


def _start_all(executor: ThreadPoolExecutor, threads: int) -> None:
    """Let all threads exist: one that cannot be started is told of here, not to a request whose turn is lost.

    Raises:
        RuntimeError: the system starts no more threads, as at a container's limit.
    """
    together = Barrier(threads)
    try:
        for _ in range(threads):
            executor.submit(together.wait)
    except RuntimeError:
        together.abort()
        raise


class PicturePool:
    """The threads. All methods belong to the event loop.

    Args:
        threads: how many there are.
        max_images: images that may be decoded or wait for it at the same time, see `room_for`.

    Raises:
        RuntimeError: the system starts no more threads.

    Attributes:
        images: those that are being decoded, or wait for it.
    """

    def __init__(self, threads: int, max_images: int) -> None:
        self.images = 0
        self._max_images = max_images
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="pictures")
        _start_all(self._executor, threads)
        self._free = threads
        self._in_line: deque[_Job] = deque()  # no thread works on them
        self._more: deque[_Job] = deque()  # threads work on them, and there is more to do

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function on a thread; return or raise what it does."""
        [result] = await self.run_all([partial(function, *args, **kwargs)])
        return result

    @contextmanager
    def room_for(self, images: int) -> Iterator[None]:
        """Count the images as being decoded.

        Raises:
            OverloadedError: with them there would be more than `max_images`.
        """
        if self.images + images > self._max_images:
            raise OverloadedError(
                f"{self.images} images are being decoded or wait for it, at most {self._max_images} may; "
                f"there is no room for {images} more"
            )
        self.images += images
        try:
            yield
        finally:
            self.images -= images

    async def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of blocking calls, in their order; cancelling it ends it between two of them.

        Raises:
            CancelledError: with what it was at, `Unfinished`.
            Exception: of the first call that fails; the calls after it may not have been made.
        """
        if not calls:
            return []
        job = _Job(deque(enumerate(calls)), asyncio.get_running_loop().create_future())
        self._in_line.append(job)
        self._begin_turns()
        try:
            await job.over
        except asyncio.CancelledError:
            raise asyncio.CancelledError(self._unfinished()) from None
        finally:
            job.left.clear()
        return [job.results[index] for index in range(len(calls))]

    def shutdown(self) -> None:
        """End the threads, after the turns under way. Blocks."""
        self._executor.shutdown()

    def _unfinished(self) -> Unfinished:
        if self.images:
            return Unfinished(f"{self.images} images are being decoded or wait for it")
        return Unfinished("the request was being read, or its answer written")

    def _begin_turns(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free and (job := self._next()):
            self._free -= 1
            job.threads += 1
            self._more.append(job)
            turn = loop.run_in_executor(self._executor, job.take_turn)
            turn.add_done_callback(partial(self._end_turn, job))

    def _next(self) -> _Job | None:
        """The job that has waited longest; if none waits, one that has more to do."""
        for jobs in (self._in_line, self._more):
            while jobs:
                job = jobs.popleft()
                if job.left:
                    return job
        return None

    def _end_turn(self, job: _Job, turn: asyncio.Future[None]) -> None:
        self._free += 1
        job.threads -= 1
        if not job.threads:
            self._more = deque(other for other in self._more if other is not job)  # at most one a thread
            if job.left:
                self._in_line.append(job)
            else:
                job.end()
        self._begin_turns()
