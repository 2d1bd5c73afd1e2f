"""Uvicorn with a graceful shutdown that drops no request in flight.

At a signal, Uvicorn closes every connection that waits for its next request. On a busy connection that
request is often on its way already, and the client gets a reset instead of an answer. Here such a connection
stays open for a moment; requests that still come are answered with `Connection: close`, so that the client
knows.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn

from service.stopping import stop_signals

LINGER_S = 0.5  # longer than a busy client and its network take from an answer to the next request
POLL_S = 0.02

log = logging.getLogger(__name__)


class GracefulServer(uvicorn.Server):
    """A server that stops in three steps: announce the end, wait for slow clients, cut off the rest.

    Args:
        config: Uvicorn's.
        on_started: called once connections are accepted.
        drain: ends another port at the same time, within the seconds that it is given.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], None] | None = None,
        drain: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await super().startup(sockets)
        if self._on_started and not self.should_exit:
            self._on_started()

    @property
    def is_told_to_stop(self) -> bool:
        """A signal has come."""
        return bool(self._captured_signals)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal; unlike Uvicorn, do not raise it again: to be asked to stop is not a failure."""
        before = {number: signal.signal(number, self.handle_exit) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: no new connections, answers to requests in flight, the configured time for slow senders."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        limit_s = self.config.timeout_graceful_shutdown or 0
        draining = asyncio.ensure_future(self._drain(limit_s)) if self._drain else None
        self.server_state.default_headers.append((b"connection", b"close"))
        await self._wait_until_all_closed(LINGER_S)
        for connection in list(self.server_state.connections):
            connection.shutdown()  # at once, or after the answer that is being made
        await self._wait_until_all_closed(limit_s)
        stalled = list(self.server_state.connections)
        if stalled:
            log.warning("cut off %d connections that took too long to send or to read", len(stalled))
        for connection in stalled:
            connection.transport.abort()  # its request ends as if the client had hung up
        while draining and not draining.done() and not self.force_exit:
            await asyncio.wait([draining], timeout=POLL_S)
        await super().shutdown(sockets)

    async def _wait_until_all_closed(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while self.server_state.connections and not self.force_exit and time.monotonic() < until:
            await asyncio.sleep(POLL_S)
