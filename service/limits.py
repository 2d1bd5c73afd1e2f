"""Refuse a body that is too large before it has been read."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLargeError


class BodyLimit:
    """ASGI middleware under which reading a request's body stops at a limit.

    A declared length over the limit is refused before the first byte is asked for, a chunked body at the
    chunk that crosses it. The server reads and drops the rest of a refused body, so that clients that send
    before they listen get to see the answer. (FastAPI's own max_body_size answers in plain text.)

    Args:
        app: what is limited.
        max_bytes: largest body, in bytes.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a `receive` that raises BodyTooLargeError."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = _declared_bytes(scope)
        received = 0

        async def limited() -> Message:
            nonlocal received
            if announced > self._max_bytes:
                raise self._too_large(f"{announced} bytes")
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._too_large("more")
            return message

        await self._app(scope, limited, send)

    def _too_large(self, came: str) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the body may have {self._max_bytes} bytes (CAPSNET_MAX_BODY_BYTES), got {came}"
        )


def _declared_bytes(scope: Scope) -> int:
    """The Content-Length, 0 where there is none; servers refuse lengths that are no numbers themselves."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return max((int(value) for value in lengths if value.isdigit() and len(value) < 20), default=0)
