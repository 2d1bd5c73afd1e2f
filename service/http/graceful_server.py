"""Uvicorn, with an end at which no client that is at work loses an answer.

Uvicorn closes every connection that waits for its next request at the moment of the signal. On one that is
busy that request is often on its way already, and its client learns of the end from a reset instead of an
answer. Here such a connection stays open for a moment; what still comes is answered with
`Connection: close`, so that the client knows.
"""

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from service.stopping import stop_signals

LINGER_S = 0.5  # longer than a client that is at work, and its network, take from an answer to a request
LOOK_S = 0.02

log = logging.getLogger(__name__)


class GracefulServer(uvicorn.Server):
    """A server that stops in three parts: it says that it ends, waits for the slow, and cuts off the rest."""

    @property
    def is_told_to_stop(self) -> bool:
        """A signal has come."""
        return bool(self._captured_signals)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal, and never raise it again, as Uvicorn does: to be asked to stop is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: no new connections, answers to what is on its way, the configured time for slow senders."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        self.server_state.default_headers.append((b"connection", b"close"))
        await self._until_all_are_closed(LINGER_S)
        for connection in list(self.server_state.connections):
            connection.shutdown()  # at once, or after the answer that is being made
        await self._until_all_are_closed(self.config.timeout_graceful_shutdown or 0)
        stalled = list(self.server_state.connections)
        if stalled:
            log.warning("cut off %d connections that took too long to send or to read", len(stalled))
        for connection in stalled:
            connection.transport.abort()  # its request ends as one whose client hung up
        await super().shutdown(sockets)

    async def _until_all_are_closed(self, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while self.server_state.connections and not self.force_exit and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
