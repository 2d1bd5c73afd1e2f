"""An id, one log line, one count and the time of every part for every request."""

import logging
import re
import secrets
from collections.abc import Iterable
from itertools import count
from time import monotonic
from typing import Any

import orjson
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import errors
from service.observability.request_metrics import RequestMetrics
from service.observability.timings import Timings, begin_timings
from service.observability.tracing import Tracer

Headers = Iterable[tuple[bytes, bytes]]

# Machines ask these every few seconds: they are logged at debug.
PROBES = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
SAFE_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
PATH_SHOWN = 200  # characters
CLIENT_CLOSED_REQUEST = 499  # nginx's number for it; never sent, since nobody is there

log = logging.getLogger(__name__)


class RequestLog:
    """ASGI middleware around everything: an id, a log line and a count for every request.

    The id is the client's X-Request-ID if that is 1 to 128 letters, digits and `._:/+=@-`, else a new one;
    the answer repeats it in the header of that name. Its Server-Timing says where the time went. This runs
    for every request: microseconds count.

    Args:
        app: what answers.
        metrics: counts.
        tracer: sends a trace of each request; None sends none.
    """

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, tracer: Tracer | None = None) -> None:
        self._app = app
        self._tracer = tracer
        self._metrics = metrics
        self._prefix = secrets.token_hex(8)  # of this process; the rest counts
        self._count = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and watch what comes back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        timings = begin_timings()
        request_id = given_id(scope["headers"]) or f"{self._prefix}{next(self._count):08x}".encode()
        noted: dict[str, Any] = {}
        scope.setdefault("state", {})["noted"] = noted
        exchange = _Exchange(scope["headers"], receive, send, request_id, timings)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            if exchange.status and not exchange.is_over:  # half an answer: the server closes the connection
                raise
            log.exception("a request failed", {"id": request_id.decode(), "path": shown_path(scope["path"])})
            if not exchange.status:
                await errors.internal_error()(scope, receive, exchange.send)
        finally:
            seconds = monotonic() - timings.began
            status = CLIENT_CLOSED_REQUEST if exchange.is_gone or not exchange.status else exchange.status
            self._metrics.answered(_template(scope), status, seconds)
            if exchange.problem:
                self._metrics.refused(exchange.problem)
            if self._tracer:
                noted["trace_id"] = self._tracer.record(scope, _template(scope), status, timings, noted)
            _log(scope, exchange, status, seconds, noted)


class _Exchange:
    """What goes in and out during one request."""

    def __init__(
        self, headers: Headers, receive: Receive, send: Send, request_id: bytes, timings: Timings
    ) -> None:
        self._timings = timings
        self._headers = headers
        self._receive = receive
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.problem: str | None = None
        self.is_read = False
        self.is_over = False
        self.is_gone = False

    async def receive(self) -> Message:
        self.is_read = True  # or begun: the server now tells a client that expects it to continue
        message = await self._receive()
        if message["type"] == "http.request":
            self.bytes_in += len(message.get("body", b""))
        elif not self.is_over:
            self.is_gone = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._timings.parts:
                self._timings.end("encode")
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id),
                (b"server-timing", self._timings.header()),
            ]
            if not self.is_read and expects_continue(self._headers):  # whether its body will come is unknown
                message["headers"].append((b"connection", b"close"))
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            self.bytes_out += len(body)
            self.is_over = not message.get("more_body", False)
            if self.status >= 400:
                self.problem = _problem_type(body)
        await self._send(message)


def log_fields(request: Request, **facts: str | int) -> None:
    """Add facts to the request's log line, such as `model="capsnet-mnist/1", images=3`."""
    request.scope["state"]["noted"].update(facts)


def given_id(headers: Headers) -> bytes | None:
    """The client's X-Request-ID, if it is safe to repeat."""
    for name, value in headers:
        if name == b"x-request-id":
            return value if SAFE_ID.fullmatch(value) else None
    return None


def expects_continue(headers: Headers) -> bool:
    """Whether the client sends its body only once it is told to: `Expect: 100-continue`.

    Other expectations are ignored (RFC 9110, 10.1.1).
    """
    expected = [value for name, value in headers if name == b"expect"]
    return any(one.strip().lower() == b"100-continue" for value in expected for one in value.split(b","))


def shown_path(path: str) -> str:
    """A path as log lines show it: it may be long, and anybody chooses it."""
    return path if len(path) <= PATH_SHOWN else f"{path[:PATH_SHOWN]}..."


def _template(scope: Scope) -> str:
    """`/models/{name}`; "other" where no route matched, or the request was refused before."""
    return getattr(scope.get("route"), "path", "other")


def _log(scope: Scope, exchange: _Exchange, status: int, seconds: float, noted: dict[str, Any]) -> None:
    path = scope["path"]
    level = logging.DEBUG if path in PROBES else logging.WARNING if status >= 500 else logging.INFO
    if not log.isEnabledFor(level):
        return
    client = scope.get("client")
    fields = {
        "id": exchange.request_id.decode(),
        "method": scope["method"],
        "path": shown_path(path),
        "status": status,
        "duration_ms": round(seconds * 1000, 3),
        "bytes_in": exchange.bytes_in,
        "bytes_out": exchange.bytes_out,
        "client": client[0] if client else None,
        **noted,
    }
    if exchange.problem:
        fields["problem"] = exchange.problem
    # As log.info does, without walking the stack to find its caller.
    log.handle(log.makeRecord(log.name, level, __file__, 0, "request", (fields,), None))


def _problem_type(body: bytes) -> str | None:
    """The `type` of a problem+json answer; middleware sees nothing but its bytes."""
    try:
        problem = orjson.loads(body)
    except orjson.JSONDecodeError:  # not every answer of 400 or more is one of ours
        return None
    return problem.get("type") if isinstance(problem, dict) else None
