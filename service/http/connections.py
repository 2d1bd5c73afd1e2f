"""Limits on connections: bytes that are not a request are refused, and no connection stays open for ever.

Uvicorn 0.54 with httptools has gaps here. A connection without a whole request has no time limit once its
first byte has arrived; 60 MB of header lines take 1 GB of memory; of pipelined requests every answer lets in
more. Malformed requests are answered at once, before earlier ones. If a request offers another protocol, as
`curl --http2` does, its body is dropped; a client that half-closes the connection, as `nc -N` does, gets no
answer; and one that is refused while it sends, and wants the connection closed, gets a reset. This file
closes the gaps with private parts of Uvicorn, so pyproject.toml pins its minor version.
"""

import asyncio
import logging
import re
import select
import weakref
from typing import Any, ClassVar

import httptools
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service import errors
from service.errors import HeadTooLargeError, MalformedRequestError, ServiceError
from service.http.request_log import RequestLog, expects_continue

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
OLD_VERSIONS = frozenset({"0.9", "1.0"})  # have no Host header and no interim responses
HOST = re.compile(rb"[^\s,/?#@]*")  # with its port; empty where the target names no host (RFC 9112, 3.2)

log = logging.getLogger(__name__)


class BoundedHttp(HttpToolsProtocol):
    """Uvicorn's protocol with limits on what a connection may do before a request reaches the application.

    Per request this costs a few additions: the time limit is one timer per connection, which checks whether
    anything has happened since its last check.

    Attributes:
        idle_s: seconds after which an idle connection is closed; longer than the 60 s after which most
            proxies close theirs, so that no proxy sends a request on a connection that was just closed.
        patience_s: a connection is cut off if it completes no head and accepts no bytes of an answer for this
            many seconds (at most twice as many).
        max_head_bytes: maximum bytes in a row that are not a body: a head, the framing of chunks, trailers.
            What is no head may exceed it by one read of the socket, 256 KiB.
        max_header_lines: of one request, trailers included.
        max_requests_ahead: pipelined requests that wait for the answer to an earlier one.
        reset_s: seconds between checks whether a client that has half-closed the connection still reads.
        linger_s: seconds for which the rest of a refused body is read and dropped, where the connection is to
            be closed: many clients send everything before they look at the answer.
    """

    idle_s: ClassVar[int] = 75
    patience_s: ClassVar[float] = 30
    max_head_bytes: ClassVar[int] = 64 * 2**10
    max_header_lines: ClassVar[int] = 100
    max_requests_ahead: ClassVar[int] = 32
    reset_s: ClassVar[float] = 0.1
    linger_s: ClassVar[float] = 10

    _newest: RequestResponseCycle | None = None
    _head_bytes = 0
    _is_refused = False
    _timer: asyncio.TimerHandle | None = None
    _has_probed = False
    _reset_timer: asyncio.TimerHandle | None = None
    _linger_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.patience_s, self._check_progress, None)
        self.timeout_keep_alive = self.idle_s
        self.timeout_keep_alive_task = self.loop.call_later(self.idle_s, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        if self._timer:
            self._timer.cancel()
        if self._reset_timer:
            self._reset_timer.cancel()
        if self._linger_timer:
            self._linger_timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has half-closed the connection; it may still read answers.

        Returns:
            Whether the connection stays open, until the last answer.
        """
        if self.pipeline and self.cycle.more_body and not self._is_refused:  # earlier ones wait for answers
            self._refuse(
                MalformedRequestError("the client sends no more, and the body has not come to its end")
            )
        newest = self.cycle
        is_whole = self._is_refused or not (newest and newest.more_body)
        if newest is None or newest.response_complete or not is_whole:
            return False
        newest.keep_alive = False
        if newest.scope.get("http_version", "1.0") not in OLD_VERSIONS and not self._reset_timer:
            self._reset_timer = self.loop.call_later(self.reset_s, self._check_for_reset)
        return True

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._is_refused or self._linger_timer:
            return
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        try:
            self._parse(data)
        except HttpParserError as error:
            ours = error.__context__  # raised by a method of this class
            fault = f"this is not an HTTP/1.1 request: {error}"
            self._refuse(ours if isinstance(ours, ServiceError) else MalformedRequestError(fault))
            return
        if self.cycle is not self._newest:  # a head is here
            self._newest = self.cycle
            self._head_bytes = 0
        if len(self.pipeline) > self.max_requests_ahead:
            self._cut_off(f"more than {self.max_requests_ahead} requests ahead of their answers")
        elif self._head_bytes > self.max_head_bytes or len(self.headers or ()) > self.max_header_lines:
            self._refuse(self._too_large())

    def on_headers_complete(self) -> None:
        """The head of a request has arrived."""
        head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > self.max_header_lines or head_bytes > self.max_head_bytes:
            raise self._too_large()
        self._check_host()
        self.expect_100_continue = expects_continue(self.headers)
        if not self.parser.should_upgrade():
            self._check_target()
            super().on_headers_complete()
            transport: Any = _ClosedLast(self, self.cycle)
            self.cycle.transport = transport
        elif self.parser.get_method() == b"CONNECT":
            raise MalformedRequestError("CONNECT asks for a tunnel, and this is not a proxy")

    def _check_target(self) -> None:
        """Uvicorn fails at a target without a path, such as `http://a`."""
        if not self.url.startswith(b"/") and httptools.parse_url(self.url).path is None:
            raise MalformedRequestError("the target of the request has no path; send / for the root")

    def on_body(self, body: bytes) -> None:
        """A piece of the body has arrived."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The whole request has arrived, trailers included."""
        if len(self.headers) > self.max_header_lines:
            raise self._too_large()
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _parse(self, data: bytes) -> None:
        """Feed the parser, which takes the bytes after an offer of another protocol for that protocol."""
        while data and len(self.pipeline) <= self.max_requests_ahead:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = HttpRequestParser(self)  # after `Connection: close` the old one reads no more
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as Uvicorn does
            else:
                return

    def _head_without_offer(self) -> bytes:
        """The current head without its offer of a protocol, which a server may ignore (RFC 9110, 7.8)."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _check_host(self) -> None:
        """There is one Host header, as RFC 9112, 3.2, requires: of two, a proxy may have read the other."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() not in OLD_VERSIONS):
            raise MalformedRequestError(f"a request has one header Host, got {len(hosts) or 'none'}")
        if hosts and not HOST.fullmatch(hosts[0]):
            raise MalformedRequestError(
                f"the header Host names one host, got {errors.shown(hosts[0].decode('latin-1'))}"
            )

    def _too_large(self) -> HeadTooLargeError:
        return HeadTooLargeError(
            f"a request may have {self.max_head_bytes} bytes of headers in {self.max_header_lines} lines"
        )

    def _refuse(self, error: ServiceError) -> None:
        """Answer the current bytes with an error after earlier requests, then close; read no more."""
        self._is_refused = True
        newest = self.cycle
        waits = newest is not None and not newest.response_complete
        if newest and newest.scope is self.scope and newest.more_body:  # its head was valid: it is the newest
            newest.disconnected = True  # for the application, its client is gone
            newest.message_event.set()
            if newest.response_started:
                self.transport.close()
                return
            waits = bool(self.pipeline)
            if waits:
                self.pipeline.popleft()
        answer = errors.problem_of(error)
        refusal: Any = RequestLog(answer, self.app_state["service"].metrics)  # counts and logs it
        self.cycle = self._newest = self._last_cycle()
        if waits:
            self.pipeline.appendleft((self.cycle, refusal))
        else:
            self._start_asgi_task(self.cycle, refusal)

    def _last_cycle(self) -> RequestResponseCycle:
        """A cycle for an answer to bytes that are not a request; afterwards the connection is closed."""
        scope: Any = {"type": "http", "method": "", "path": "", "headers": [], "client": self.client}
        return RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=False,
            on_response=self.on_response_complete,
        )

    def _check_progress(self, seen: tuple[RequestResponseCycle | None, int] | None) -> None:
        """Cut the connection off if nothing has happened since the last check."""
        is_done = self.cycle is None or self.cycle.response_complete
        is_idle = self.timeout_keep_alive_task is not None and not self.transport.is_closing()
        unsent: Any = self.transport.get_write_buffer_size()
        now = (self.cycle, unsent) if self.flow.write_paused or (is_done and not is_idle) else None
        if now and now == seen:
            self._cut_off(f"neither sent a request nor read an answer in {self.patience_s:g} s")
        else:
            self._timer = self.loop.call_later(self.patience_s, self._check_progress, now)

    def _check_for_reset(self) -> None:
        """Let the application know when a client that has half-closed the connection is gone.

        Both look the same until something is sent; then the system of a client that is gone resets the
        connection. So it is sent, once, an interim response, which a client that still reads may ignore
        (RFC 9110, 10.1.1 and 15.2).
        """
        if self.transport.is_closing():
            return
        if not self._has_probed and not self.pipeline and not self.cycle.response_started:
            self._has_probed = True
            self.transport.write(CONTINUE)
        elif _is_reset(self.transport.get_extra_info("socket").fileno()):
            self.transport.abort()
            return
        self._reset_timer = self.loop.call_later(self.reset_s, self._check_for_reset)

    def close_after(self, cycle: RequestResponseCycle) -> None:
        """Close the connection after an answer; if the request is still arriving, once the client closes it.

        To close a socket with unread bytes resets the connection, and takes the answer from the client.
        """
        if cycle.more_body and cycle.response_complete and self.transport.can_write_eof():
            self.transport.write_eof()
            self._linger_timer = self.loop.call_later(self.linger_s, self.transport.abort)
        else:
            self.transport.close()

    def _cut_off(self, reason: str) -> None:
        log.info("cut off a client", {"client": self.client[0] if self.client else None, "reason": reason})
        self.transport.abort()


class _ClosedLast:
    """What Uvicorn writes an answer to, and closes afterwards."""

    def __init__(self, http: BoundedHttp, cycle: RequestResponseCycle) -> None:
        self._http = http
        self._cycle = weakref.ref(cycle)  # which holds this

    def __getattr__(self, name: str) -> Any:
        return getattr(self._http.transport, name)

    def close(self) -> None:
        """Close the connection, if need be later."""
        cycle = self._cycle()
        assert cycle, "it closes its connection"
        self._http.close_after(cycle)


def _is_reset(descriptor: int) -> bool:
    """Whether the other side of a socket has reset its connection."""
    poll = select.poll()
    poll.register(descriptor, 0)  # errors and resets are always reported
    return bool(poll.poll(0))
