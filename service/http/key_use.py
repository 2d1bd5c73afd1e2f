"""What each key may still send: requests per second, and requests at once, over all processes of a service.

The counts lie in memory that all workers share. Each key has a place there by its name, which it keeps when
the files of keys are read again, whatever lines came or went: no key finds the counts of another, and one
that gets a new secret goes on with its own. Only whoever takes a place for a key locks the memory. Nobody
locks it to count: two workers that count at the very same moment may let a request more through, and a
worker that is killed can leave nothing locked.
"""

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from pathlib import Path
from time import monotonic

from service.errors import TooManyRequestsError
from service.http.keys import MAX_KEYS, Key
from service.settings import MAX_WORKERS

# Twice as many as there are keys at a time, so that those of keys that are gone need not be taken at once.
PLACES = 2 * MAX_KEYS
SHARED_BYTES = PLACES * 8 + PLACES * 8 + MAX_WORKERS * PLACES * 4


class KeyUse:
    """Counts the requests of every key. All methods belong to the event loop.

    Args:
        shared: a file of `SHARED_BYTES` zeros that all workers of a service have; None: there is one process.
        worker: the number of this one, whose counts begin anew.
    """

    def __init__(self, shared: Path | None = None, worker: int = 0) -> None:
        memory = _mapped(shared) if shared else mmap.mmap(-1, SHARED_BYTES)
        view = memoryview(memory)
        self._shared = shared
        self._owners = view[: PLACES * 8].cast("Q")  # digests of names; 0 for a place that had none yet
        # When the next request of a key would be due if all came evenly, in seconds of the monotonic clock.
        self._due = view[PLACES * 8 : PLACES * 16].cast("d")
        self._under_way = view[PLACES * 16 :].cast("I")  # of each worker, of each place
        self._own = worker * PLACES
        for place in range(self._own, self._own + PLACES):
            self._under_way[place] = 0
        # Digest and place of a name; by now, the place may have another owner.
        self._known: dict[str, tuple[int, int]] = {}

    @contextmanager
    def counted(self, key: Key) -> Iterator[None]:
        """A request of a key is under way.

        Raises:
            TooManyRequestsError: 429; the key has sent too many in too short a time, or too many at once.
        """
        if not key.rate and not key.concurrency:
            yield
            return
        place = self._place(key.name)
        if key.concurrency:
            self._check_concurrency(key, place)
        if key.rate:
            self._check_rate(key, place)
        own = self._own + place
        self._under_way[own] += 1
        try:
            yield
        finally:
            self._under_way[own] -= 1

    def _place(self, name: str) -> int:
        """Where a key is counted, the same in all workers."""
        digest, place = self._known.get(name) or (_digest(name), 0)
        if self._owners[place] != digest:
            with _locked(self._shared) if self._shared else nullcontext():
                place = self._find(digest)
            if len(self._known) >= PLACES:  # many names have come and gone
                self._known.clear()
            self._known[name] = digest, place
        return place

    def _find(self, digest: int) -> int:
        """The place of a name; if it has none, one that was never used, or not for the longest time."""
        owners = self._owners.tolist()
        if digest in owners:
            return owners.index(digest)
        by_use = sorted(range(PLACES), key=lambda place: (self._due[place], owners[place]))
        place = next(place for place in by_use if not self._requests_under_way(place))
        self._owners[place], self._due[place] = digest, 0.0
        return place

    def _requests_under_way(self, place: int) -> int:
        return sum(self._under_way[place::PLACES])

    def _check_concurrency(self, key: Key, place: int) -> None:
        under_way = self._requests_under_way(place)
        if under_way >= key.concurrency:
            raise TooManyRequestsError(
                f"the key {key.name} may have {key.concurrency} requests under way, and has {under_way}", 1
            )

    def _check_rate(self, key: Key, place: int) -> None:
        """The requests of about a second may come at once (GCRA, the token bucket as a clock)."""
        now, apart = monotonic(), 1 / key.rate
        burst = max(apart, 1.0)
        if self._due[place] > now + burst:  # by a lower rate, which the key had before
            self._due[place] = now + burst
        ahead = max(self._due[place], now) + apart - now
        wait = ahead - burst
        if wait > 1e-9:
            raise TooManyRequestsError(
                f"the key {key.name} may send {key.rate:g} requests per second", math.ceil(wait)
            )
        self._due[place] = now + ahead


def _digest(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


@contextmanager
def _locked(shared: Path) -> Iterator[None]:
    """No other process has the lock meanwhile; the system takes it back from one that dies."""
    import fcntl  # Windows has none, and only one process of a service

    with shared.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _mapped(shared: Path) -> mmap.mmap:
    with shared.open("r+b") as file:
        return mmap.mmap(file.fileno(), SHARED_BYTES)
