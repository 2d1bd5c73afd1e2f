"""The Open Inference Protocol over gRPC, on a port of its own, in the event loop of the HTTP server.

The messages are those that NVIDIA generates from the protocol's .proto and ships in `tritonclient`: most of
what that needs is here anyway, and a process can hold one definition of these messages only, so a second one
would keep the client from being used beside the service.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from service.oip.grpc_calls import PATH, Calls
from service.oip.grpc_methods import METHODS, UNKNOWN
from service.settings import Settings
from service.state import Service

MAX_CALLS = 1024  # of one connection at the same time; more wait in the client
MAX_METADATA_BYTES = 64 * 2**10  # as of the head of an HTTP request
IDLE_MS = 300_000  # then an idle connection is closed; clients open another without noticing
SAID_S = 0.25  # from the announcement of the end (GOAWAY) to the answers: a busy client reads it late


class GrpcPort:
    """A port for the protocol's gRPC form, that is open while a service runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server: Any = None

    @asynccontextmanager
    async def open(self, service: Service) -> AsyncIterator[None]:
        """Answer calls; at the end, those that are left are cancelled.

        Raises:
            OSError: the port is taken.
        """
        self._server = grpc.aio.server(options=_options(self._settings))
        self._calls = Calls(service)
        self._server.add_generic_rpc_handlers([_Handlers(self._calls)])
        try:
            self._server.add_insecure_port(self._settings.grpc_address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._settings.grpc_address}: {error}") from None
        await self._server.start()
        try:
            yield
        finally:
            await self.drain(0)

    async def drain(self, grace_s: float) -> None:
        """Accept no more calls, and wait for those under way; after this time they are cancelled.

        gRPC cancels a call that arrives before its client has heard of the end. Most clients send the next
        one when they have an answer, so for a moment they get none: the word of the end reaches them first.
        """
        if self._server is None:
            return
        server, self._server = self._server, None
        self._calls.may_end.clear()
        try:
            await self._calls.quiet(grace_s)
            stopping = asyncio.ensure_future(server.stop(grace_s))
            await asyncio.wait([stopping], timeout=SAID_S)
        finally:
            self._calls.may_end.set()
        await stopping


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # it has no types
    """The handler of each method.

    All take a stream of messages, of which a unary call is the case with one: so the key of a call is checked
    before gRPC reads the message.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._methods = {PATH + method.name: method for method in METHODS}

    def service(self, details: Any) -> Any:
        """The handler of a call."""
        method = self._methods.get(details.method, UNKNOWN)
        return grpc.stream_unary_rpc_method_handler(partial(self._calls.answer, method, details.method))


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_concurrent_streams", MAX_CALLS),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        # Workers share the port, which `keep_port` keeps from all others. gRPC cannot take an open socket, as
        # HTTP does: connections that wait for a worker which is killed are reset, and clients connect again.
        ("grpc.so_reuseport", 1),
    ]
