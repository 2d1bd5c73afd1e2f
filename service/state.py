"""The state of a running service, which the lifespan makes and every route gets from its request."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict

from starlette.requests import ClientDisconnect, Request

from service.errors import DeadlineExceededError
from service.http.picture_pool import PicturePool
from service.models.repository import Repository
from service.observability.metrics import Metrics
from service.settings import Settings

# A client that hangs up is noticed only after this time: most answers take less, and watching costs time.
WATCHED_AFTER_S = 0.1


class State(TypedDict):
    """The lifespan's state, of which every request has a copy."""

    service: "Service"


@dataclass
class Service:
    """The parts of a running service. All methods belong to the event loop.

    Attributes:
        pool: threads for pictures, which would block the event loop for milliseconds.
    """

    settings: Settings
    repository: Repository
    pool: PicturePool
    metrics: Metrics

    @asynccontextmanager
    async def while_wanted(self, request: Request) -> AsyncIterator[None]:
        """Work on the answer to a request until its deadline, or until its client hangs up.

        Raises:
            DeadlineExceededError: it took longer than CAPSNET_DEADLINE_MS.
            ClientDisconnect: the client has hung up.
        """
        limit_ms = self.settings.deadline_ms
        try:
            async with asyncio.timeout(limit_ms / 1000) as timer:
                watcher = _Watcher(request, timer)
                try:
                    yield
                finally:
                    watcher.end()
        except TimeoutError:
            if watcher.is_gone:
                raise ClientDisconnect from None
            raise DeadlineExceededError(
                f"no result within {limit_ms} ms (CAPSNET_DEADLINE_MS); {self.pool.images} images are being "
                "decoded or wait for it"
            ) from None


def service_of(request: Request) -> Service:
    """The service that a request came to: from the state that the lifespan made."""
    service: Service = request.scope["state"]["service"]
    return service


class _Watcher:
    """Makes the timer of a request expire when its client hangs up.

    Attributes:
        is_gone: the client has.
    """

    def __init__(self, request: Request, timer: asyncio.Timeout) -> None:
        self._request = request
        self._timer = timer
        self._task: asyncio.Task[None] | None = None
        self._begins = asyncio.get_running_loop().call_later(WATCHED_AFTER_S, self._begin)
        self.is_gone = False

    def end(self) -> None:
        """Stop watching."""
        self._begins.cancel()
        if self._task:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._timer.reschedule(asyncio.get_running_loop().time())
