"""Limits on request bodies: the size of each, the time it takes to arrive, and the memory of all."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLargeError, OverloadedError, SlowBodyError

SMALL_BYTES = 2**20  # the last quarter of the memory is left to bodies up to this size


class BodyMemory:
    """The memory for the bodies of all requests, over HTTP and gRPC. All methods belong to the event loop.

    A body counts as held from its arrival to the end of its request. The last quarter of the memory is left
    to small bodies, so that a few clients with large ones do not shut out all others.

    Attributes:
        max_bytes: largest sum of the bodies, in bytes; at least 4/3 of the largest body.
        held_bytes: the sum of the bodies held now.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def check_room(self, size: int) -> None:
        """All current bodies fit, of which one has this size in bytes.

        Raises:
            OverloadedError: they do not.
        """
        room = self.max_bytes if size <= SMALL_BYTES else self.max_bytes * 3 // 4
        if self.held_bytes > room:
            raise OverloadedError(
                f"the bodies of requests under way have {self.held_bytes} bytes; at most {self.max_bytes} "
                f"are held (CAPSNET_UPLOADS_BYTES), the last quarter of them for bodies of up to "
                f"{SMALL_BYTES}"
            )

    @contextmanager
    def holding(self, more: int, size: int) -> Iterator[None]:
        """While it lasts, so many more bytes are held, of a body of this size in bytes.

        Raises:
            OverloadedError: they do not fit.
        """
        self.held_bytes += more
        try:
            if more:  # else it is held, and has been checked, already
                self.check_room(size)
            yield
        finally:
            self.held_bytes -= more


class BodyLimit:
    """ASGI middleware that stops reading a request's body at a limit.

    If the declared length is over the limit, the request is refused before its first byte is read; a chunked
    body is refused at the chunk that crosses the limit. The server reads and drops the rest of a refused
    body, so that clients that send everything before they listen see the answer. (FastAPI's own max_body_size
    answers in plain text.)

    Attributes:
        arriving: bodies that have not fully arrived, oldest first.

    Args:
        app: the application inside.
        max_bytes: largest body, in bytes.
        memory: for the bodies of all requests.
        receive_ms: longest time from the end of a request's headers to the end of its body, in milliseconds.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, memory: BodyMemory, receive_ms: int) -> None:
        self._app = app
        self.max_bytes = max_bytes
        self.memory = memory
        self._receive_s = receive_ms / 1000
        # All have the same time limit. So one timer serves all, and most bodies, which arrive with their
        # headers, need none.
        self.arriving: dict[_Arrival, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a `receive` that raises BodyTooLarge-, Overloaded- or SlowBodyError."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrival = _Arrival(self, scope, receive)
        try:
            await self._app(scope, arrival.receive, send)
        finally:
            self.memory.held_bytes -= arrival.received_bytes
            self.arriving.pop(arrival, None)

    def begin(self, arrival: "_Arrival") -> None:
        """Expect a body, until it has arrived or its request is over.

        Raises:
            BodyTooLargeError: its declared length is over the limit.
        """
        announced = _declared_bytes(arrival.scope)
        if announced > self.max_bytes:
            raise self.too_large(f"{announced} bytes")
        loop = asyncio.get_running_loop()
        arrival.ends_at = loop.time() + self._receive_s
        self.arriving[arrival] = None
        if self._timer is None:
            self._timer = loop.call_at(arrival.ends_at, self._end_overdue)

    def too_large(self, came: str) -> BodyTooLargeError:
        """The error for a body over the limit."""
        return BodyTooLargeError(
            f"the body may have {self.max_bytes} bytes (CAPSNET_MAX_BODY_BYTES), got {came}"
        )

    def too_slow(self, came_bytes: int) -> SlowBodyError:
        """The error for a body that has not arrived in time."""
        return SlowBodyError(
            f"the body may take {self._receive_s * 1000:.0f} ms to arrive (CAPSNET_RECEIVE_MS); "
            f"got {came_bytes} bytes by then"
        )

    def _end_overdue(self) -> None:
        """Give up the overdue bodies, and set the timer for the next one."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while self.arriving:
            oldest = next(iter(self.arriving))
            if oldest.ends_at > loop.time():
                self._timer = loop.call_at(oldest.ends_at, self._end_overdue)
                return
            del self.arriving[oldest]
            oldest.give_up()


class _Arrival:
    """One request's body on its way in.

    Attributes:
        ends_at: when it must have arrived, in seconds of the event loop's clock; 0 before it is asked for.
        received_bytes: how much has arrived.
    """

    def __init__(self, limit: BodyLimit, scope: Scope, receive: Receive) -> None:
        self._limit = limit
        self._receive = receive
        self._reader: asyncio.Task[object] | None = None
        self._has_arrived = False
        self._is_overdue = False
        self.scope = scope
        self.ends_at = 0.0
        self.received_bytes = 0

    async def receive(self) -> Message:
        """The next message, as the server has it."""
        if self._has_arrived:  # the next message is a disconnect, which may never come
            return await self._receive()
        if not self.ends_at:
            self._limit.begin(self)
        elif self._is_overdue:
            raise self._limit.too_slow(self.received_bytes)
        # As asyncio.timeout does, which takes longer than all the rest of this.
        self._reader = reader = asyncio.current_task()
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if reader is None or not self._is_overdue:
                raise
            reader.uncancel()
            raise self._limit.too_slow(self.received_bytes) from None
        finally:
            self._reader = None
        self._take(message)
        return message

    def give_up(self) -> None:
        """The time is over: wake the reader."""
        self._is_overdue = True
        if self._reader:
            self._reader.cancel()

    def _take(self, message: Message) -> None:
        """Count what has arrived, and refuse what is too much."""
        limit, size = self._limit, len(message.get("body", b""))
        limit.memory.held_bytes += size
        self.received_bytes += size
        if self.received_bytes > limit.max_bytes:
            raise limit.too_large("more")
        limit.memory.check_room(self.received_bytes)
        if not message.get("more_body", False):
            self._has_arrived = True
            limit.arriving.pop(self, None)


def _declared_bytes(scope: Scope) -> int:
    """The Content-Length, 0 where there is none; the server itself refuses lengths that are not numbers."""
    declared = 0
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            declared = max(declared, int(value))
    return declared
