"""What every call goes through: a key, its message, the code of an error, a log line, a count and a trace.

As `service.http` does it for requests: with the same keys, limits, texts, fields of the log and metrics.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc

from service.errors import OUR_FAULT, ServiceError
from service.http.auth import check_admin_key, check_key
from service.http.keys import Headers
from service.http.request_log import CLIENT_CLOSED_REQUEST, given_id, shown_path
from service.observability.timings import Timings, begin_timings
from service.oip.grpc_arrival import Arrivals
from service.oip.grpc_messages import parse_message
from service.state import Service

PATH = "/inference.GRPCInferenceService/"
CODES = {  # of the HTTP status of an outcome
    200: grpc.StatusCode.OK,
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    CLIENT_CLOSED_REQUEST: grpc.StatusCode.CANCELLED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
MAX_TEXT = 1000  # characters of an error: by default, clients accept 8 KiB of metadata

ON_THE_WAY_S = 0.5  # a client that has its answer sends its next call within this time
LINGER_S = 1.5
INLINE_BYTES = 2**20  # a larger message takes milliseconds to read

Context = Any  # grpc.aio.ServicerContext, which has no types

log = logging.getLogger(__name__)


class UnknownMethodError(ServiceError):
    """A method that the service does not have."""

    status, slug, title = 405, "method-not-allowed", "No such method"


class InternalError(ServiceError):
    """The service itself is at fault."""

    status, slug, title = 500, "internal-error", "Internal error"


@dataclass
class Call:
    """A call under way.

    Attributes:
        path: of its method as the client named it, cut to what a log line shows.
        headers: its metadata.
        client: the address and port that it comes from, as gRPC names them.
        noted: facts for its log line, such as `model`.
        status: the HTTP status of the same outcome over HTTP.
        timings: of its parts.
    """

    path: str
    headers: Headers
    request_id: str
    client: str
    noted: dict[str, Any] = field(default_factory=dict)
    status: int = CLIENT_CLOSED_REQUEST
    bytes_in: int = 0
    bytes_out: int = 0
    timings: Timings = field(default_factory=begin_timings)


@dataclass(frozen=True)
class Method:
    """A method of the protocol.

    Attributes:
        request: the class of its messages; None where none is read: probes and errors need no turn.
        answer: gives the message that answers.
        is_probe: needs no key, and is logged at debug.
        is_administration: needs the admin key.
        is_known: its name is the protocol's, and not just any that a client made up.
    """

    name: str
    request: Any
    answer: Callable[[Service, Any, Call], Awaitable[bytes]]
    is_probe: bool = False
    is_administration: bool = False
    is_known: bool = True


class Calls:
    """Answers calls. All methods belong to the event loop.

    Attributes:
        may_end: set unless answers are held back, see `GrpcPort.drain`.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._arrivals = Arrivals(service.settings)
        self._begun = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def answer(
        self, method: Method, path: str, messages: AsyncIterator[bytes], context: Context
    ) -> bytes:
        """The bytes of the answer; an error ends the call with its code and text."""
        self._begun += 1
        call = _begin(path, context)
        try:
            answer = await self._answer_when_it_may_end(method, call, messages)
        except ServiceError as error:
            await _refuse(call, context, error)
        except Exception:
            log.exception("a call failed", {"id": call.request_id, "path": call.path})
            await _refuse(call, context, InternalError(OUR_FAULT))
        else:
            call.status, call.bytes_out = 200, len(answer)
            context.set_trailing_metadata((("x-request-id", call.request_id),))
            return answer
        finally:
            seconds = monotonic() - call.timings.began
            route = PATH + method.name if method.is_known else "other"
            self._service.metrics.answered(route, call.status, seconds)
            if problem := call.noted.get("problem"):
                self._service.metrics.refused(problem)
            if tracer := self._service.tracer:
                ended = _code(call.status).name, call.status >= 500
                call.noted["trace_id"] = tracer.record_call(
                    route.removeprefix("/"), call.headers, *ended, call.timings, call.noted
                )
            _log(method, call, seconds)

    async def quiet(self, limit_s: float) -> None:
        """Wait until no more calls come, for at most a moment."""
        begun = -1
        until = monotonic() + min(limit_s, LINGER_S)
        while begun != self._begun and monotonic() < until:
            begun = self._begun
            await asyncio.sleep(ON_THE_WAY_S)

    async def _answer_when_it_may_end(
        self, method: Method, call: Call, messages: AsyncIterator[bytes]
    ) -> bytes:
        try:
            return await self._answer(method, call, messages)
        finally:
            if call.timings.parts:
                call.timings.end("encode")
            await self.may_end.wait()

    async def _answer(self, method: Method, call: Call, messages: AsyncIterator[bytes]) -> bytes:
        service = self._service
        if not service.keys.are_needed or method.is_probe:
            return await self._answer_known(method, call, messages)
        key = check_key(call.headers, service.keys)
        call.noted["key"] = key.name
        with service.key_use.counted(key):
            return await self._answer_known(method, call, messages)

    async def _answer_known(self, method: Method, call: Call, messages: AsyncIterator[bytes]) -> bytes:
        """The answer to somebody who may ask."""
        service, bodies = self._service, self._service.bodies
        if method.request is None:
            return await method.answer(service, None, call)
        if method.is_administration:
            check_admin_key(call.headers, service.keys)
        body = await self._arrivals.read(messages, call.client)
        call.timings.end("receive")
        call.bytes_in = len(body)
        with bodies.holding(call.bytes_in, call.bytes_in):
            message = await self._parse(method, body)
            del body
            return await method.answer(service, message, call)

    async def _parse(self, method: Method, body: bytes) -> Any:
        if len(body) <= INLINE_BYTES:
            return parse_message(method.request, body)
        with self._service.pool.room_for(1):
            return await self._service.pool.run(parse_message, method.request, body)


def _begin(path: str, context: Context) -> Call:
    metadata = context.invocation_metadata() or ()
    headers = [
        (key.encode(), value if isinstance(value, bytes) else value.encode()) for key, value in metadata
    ]
    request_id = given_id(headers) or secrets.token_hex(12).encode()
    return Call(shown_path(path), headers, request_id.decode(), context.peer())


async def _refuse(call: Call, context: Context, error: ServiceError) -> NoReturn:
    """End the call with the code and the text of an error, and in its metadata what HTTP has in headers."""
    call.status = error.status
    call.noted["problem"] = f"/problems/{error.slug}"
    metadata = [("x-request-id", call.request_id), ("problem", call.noted["problem"])]
    if after := error.headers.get("Retry-After"):
        metadata.append(("retry-after", after))
    await context.abort(_code(error.status), str(error)[:MAX_TEXT], tuple(metadata))
    raise AssertionError("abort raises")


def _code(status: int) -> Any:
    """The grpc.StatusCode of the HTTP status of the same outcome."""
    return CODES.get(status, grpc.StatusCode.UNKNOWN)


def _log(method: Method, call: Call, seconds: float) -> None:
    level = logging.DEBUG if method.is_probe else logging.WARNING if call.status >= 500 else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields = {
        "id": call.request_id,
        "method": "gRPC",
        "path": call.path,
        "status": call.status,
        "duration_ms": round(seconds * 1000, 3),
        "bytes_in": call.bytes_in,
        "bytes_out": call.bytes_out,
        "client": _address(call.client),
        **call.noted,
    }
    log.log(level, "request", fields)


def _address(peer: str) -> str:
    """`ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000` as the address alone."""
    _, _, place = unquote(peer).partition(":")
    return place.rpartition(":")[0].strip("[]")
