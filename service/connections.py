"""Connections on which no request comes, or one without an end, are closed.

Uvicorn 0.54 with httptools leaves them open and reads on: a connection without a request has no time limit
once its first byte is there, 60 MB of header lines take 1 GB, and of requests sent ahead of their answers
every answer lets in more.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

PROBLEM = (
    b'{"type":"/problems/head-too-large","title":"The head of the request is too large","status":431,'
    b'"detail":"a request may have %d bytes of headers in %d lines"}'
)
ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/problem+json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
)


class BoundedHttp(HttpToolsProtocol):
    """Uvicorn's protocol, and limits on what a connection takes before a request is the application's.

    Per request it costs a few additions: the time limit is one timer per connection, which looks whether
    anything has happened since it last looked.

    Attributes:
        patience_s: a connection without a request under way is cut off when in so much time no head was
            completed and nothing of an answer sent; after its first request, in twice as much at most.
        max_head_bytes: bytes in a row that are no body: a head, the lines that frame a chunk, trailers. What
            one read of the socket brings may go beyond it by 256 KiB.
        max_header_lines: of one request, trailers included.
        max_requests_ahead: requests that wait for the answer to an earlier one of their connection.
    """

    patience_s: ClassVar[float] = 30
    max_head_bytes: ClassVar[int] = 64 * 2**10
    max_header_lines: ClassVar[int] = 100
    max_requests_ahead: ClassVar[int] = 32

    _newest: RequestResponseCycle | None = None
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.patience_s, self._look, (None, 0))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self.cycle is not self._newest:  # a head is here
            self._newest = self.cycle
            self._head_bytes = 0
        if len(self.pipeline) > self.max_requests_ahead:
            self.transport.abort()
        elif self._head_bytes > self.max_head_bytes or len(self.headers or ()) > self.max_header_lines:
            self._refuse_head()

    def on_body(self, body: bytes) -> None:
        """A piece of its body is here."""
        self._head_bytes = 0
        super().on_body(body)

    def _refuse_head(self) -> None:
        if self.pipeline:  # whoever reads would take it for the answer to an earlier request
            self.transport.abort()
            return
        problem = PROBLEM % (self.max_head_bytes, self.max_header_lines)
        self.transport.write(ANSWER % (len(problem), problem))
        self.transport.close()

    def _look(self, seen: tuple[RequestResponseCycle | None, int] | None) -> None:
        """Cut the connection off if it is where it was the last time."""
        is_idle = self.cycle is None or self.cycle.response_complete
        unsent: Any = self.transport.get_write_buffer_size()
        now = (self.cycle, unsent) if is_idle or self.flow.write_paused else None
        if now and now == seen:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self.patience_s, self._look, now)
