"""Turns that clients take fairly: one with many calls does not keep a turn from one with few."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class _Waiter(NamedTuple):
    client: str
    turn: asyncio.Future[None]


class FairTurns:
    """A semaphore whose next turn goes to whoever holds the fewest. All methods belong to the event loop.

    Clients are named by address and port, as gRPC does it: "ipv4:10.0.0.1:50123". First the turns of their
    hosts count, then those of their connections, then who came first.

    Args:
        count: turns at a time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._held: Counter[str] = Counter()  # by host, and by connection
        self._waiting: list[_Waiter] = []

    @property
    def waiting(self) -> int:
        """How many wait for a turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, client: str, limit_s: float) -> AsyncIterator[None]:
        """A turn, kept while it lasts.

        Raises:
            TimeoutError: none was free for this long, in seconds.
        """
        async with asyncio.timeout(limit_s):
            await self._take(client)
        try:
            yield
        finally:
            self._give_back(client)

    async def _take(self, client: str) -> None:
        if self._free:
            self._free -= 1
            self._hold(client, 1)
            return
        waiter = _Waiter(client, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # the turn came just now
                self._give_back(client)
            raise

    def _give_back(self, client: str) -> None:
        self._hold(client, -1)
        waiting = [waiter for waiter in self._waiting if not waiter.turn.done()]  # else just cancelled
        if not waiting:
            self._free += 1
            return
        following = min(waiting, key=lambda waiter: [self._held[name] for name in _names(waiter.client)])
        self._waiting.remove(following)
        self._hold(following.client, 1)
        following.turn.set_result(None)

    def _hold(self, client: str, turns: int) -> None:
        for name in _names(client):
            self._held[name] += turns
            if not self._held[name]:
                del self._held[name]


def _names(client: str) -> tuple[str, str]:
    """Of its host, and of its connection."""
    return f"host {client.rpartition(':')[0]}", client
