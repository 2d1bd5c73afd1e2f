"""What each key may still send: requests per second, and requests at once, over all processes of a service.

The counts lie in memory that all workers share. Nobody locks it: two workers that count at the very same
moment may let a request more through, and a worker that is killed can leave nothing locked.
"""

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from service.errors import TooManyRequestsError
from service.http.keys import MAX_KEYS, Key
from service.settings import MAX_WORKERS

DUE_BYTES = MAX_KEYS * 8
SHARED_BYTES = DUE_BYTES + MAX_WORKERS * MAX_KEYS * 4


class KeyUse:
    """Counts the requests of every key. All methods belong to the event loop.

    Args:
        shared: a file of `SHARED_BYTES` zeros that all workers of a service have; None: there is one process.
        worker: the number of this one, whose counts begin anew.
    """

    def __init__(self, shared: Path | None = None, worker: int = 0) -> None:
        memory = _mapped(shared) if shared else mmap.mmap(-1, SHARED_BYTES)
        view = memoryview(memory)
        # When the next request of a key would be due if all came evenly, in seconds of the monotonic clock.
        self._due = view[:DUE_BYTES].cast("d")
        self._under_way = view[DUE_BYTES:].cast("I")  # of each worker, of each key
        self._own = worker * MAX_KEYS
        for place in range(self._own, self._own + MAX_KEYS):
            self._under_way[place] = 0

    @contextmanager
    def counted(self, key: Key) -> Iterator[None]:
        """A request of a key is under way.

        Raises:
            TooManyRequestsError: 429; the key has sent too many in too short a time, or too many at once.
        """
        if not key.rate and not key.concurrency:
            yield
            return
        if key.concurrency:
            self._check_concurrency(key)
        if key.rate:
            self._check_rate(key)
        place = self._own + key.place
        self._under_way[place] += 1
        try:
            yield
        finally:
            self._under_way[place] -= 1

    def _check_concurrency(self, key: Key) -> None:
        under_way = sum(self._under_way[key.place :: MAX_KEYS])
        if under_way >= key.concurrency:
            raise TooManyRequestsError(
                f"the key {key.name} may have {key.concurrency} requests under way, and has {under_way}", 1
            )

    def _check_rate(self, key: Key) -> None:
        """The requests of about a second may come at once (GCRA, the token bucket as a clock)."""
        now, apart = monotonic(), 1 / key.rate
        ahead = max(self._due[key.place], now) + apart - now
        wait = ahead - max(apart, 1.0)
        if wait > 1e-9:
            raise TooManyRequestsError(
                f"the key {key.name} may send {key.rate:g} requests per second", math.ceil(wait)
            )
        self._due[key.place] = now + ahead


def _mapped(shared: Path) -> mmap.mmap:
    with shared.open("r+b") as file:
        return mmap.mmap(file.fileno(), SHARED_BYTES)
