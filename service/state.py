"""The state of a running service, which the lifespan makes and every route gets from its request."""

import asyncio
from dataclasses import dataclass
from typing import TypedDict

from starlette.requests import ClientDisconnect, Request

from service.errors import DeadlineExceededError, Unfinished
from service.http.key_use import KeyUse
from service.http.keys import Keys
from service.http.limits import BodyMemory
from service.http.picture_pool import PicturePool
from service.models.interface import Models
from service.observability.request_metrics import RequestMetrics
from service.observability.tracing import Tracer
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
        bodies: what the bodies of all requests may take.
        keys: that open the service, with the admin key.
        key_use: what each key has sent.
        tracer: sends a trace of each request; None sends none.
    """

    settings: Settings
    models: Models
    pool: PicturePool
    metrics: RequestMetrics
    bodies: BodyMemory
    keys: Keys
    key_use: KeyUse
    tracer: Tracer | None = None

    def while_wanted(self, request: Request) -> "_Answering":
        """Work on the answer to a request until its deadline, or until its client hangs up.

        Raises:
            DeadlineExceededError: it took longer than CAPSNET_DEADLINE_MS.
            ClientDisconnect: the client has hung up.
        """
        return _Answering(self, request, self.settings.deadline_ms / 1000)

    def while_connected(self, request: Request) -> "_Answering":
        """Work on the answer to a request for as long as it takes, or until its client hangs up.

        Raises:
            ClientDisconnect: the client has hung up.
        """
        return _Answering(self, request, None)

    def too_late(self, cancelled: BaseException | None = None) -> DeadlineExceededError:
        """The error for a request that has reached its deadline; `cancelled` ended the work on it."""
        told = [f"; {why}" for why in cancelled.args if isinstance(why, Unfinished)] if cancelled else []
        limit = f"{self.settings.deadline_ms} ms (CAPSNET_DEADLINE_MS)"
        return DeadlineExceededError(f"no result within {limit}{''.join(told)}")


def service_of(request: Request) -> Service:
    """The service that a request came to: from the state that the lifespan made."""
    service: Service = request.scope["state"]["service"]
    return service


class _Answering:
    """Cancels the work on an answer at the deadline, or when the client hangs up.

    What `asyncio.timeout` does with a task that watches the client, and with less to do for an answer that
    is there after a few milliseconds.
    """

    def __init__(self, service: Service, request: Request, limit_s: float | None) -> None:
        self._service = service
        self._request = request
        self._limit_s = limit_s
        self._watcher: asyncio.Task[None] | None = None
        self._error: Exception | None = None  # why the work was cancelled

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        worker = asyncio.current_task(loop)
        assert worker, "a request is answered in a task"
        self._worker, self._cancellations = worker, worker.cancelling()
        self._began = loop.time()
        limit_s = WATCHED_AFTER_S if self._limit_s is None else self._limit_s
        self._timer = loop.call_later(min(WATCHED_AFTER_S, limit_s), self._watch)

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, _: object
    ) -> None:
        self._timer.cancel()
        if self._watcher:
            self._watcher.cancel()
        if self._error is None:
            return
        if self._worker.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            is_late = isinstance(self._error, DeadlineExceededError)
            raise self._service.too_late(raised) if is_late else self._error from None

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._limit_s is not None:
            ends_at = self._began + self._limit_s
            self._timer = loop.call_at(ends_at, lambda: self._give_up(self._service.too_late()))
        self._watcher = loop.create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._give_up(ClientDisconnect())

    def _give_up(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._worker.cancel()
