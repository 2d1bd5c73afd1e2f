"""Traces of requests and gRPC calls, for OpenTelemetry: a span for each and one for each of its parts.

The spans are made of a request's timings once it is over, so a request that is not sampled costs next to
nothing, and one that is takes no longer. OpenTelemetry's own variables say where they go, how many are
sampled, and what the service is called: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME.
"""

import logging
from collections.abc import Iterable, Mapping
from threading import Thread
from time import monotonic, time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from service.observability.timings import Timings

Headers = Iterable[tuple[bytes, bytes]]

NAME = "capsnet"
NS = 1_000_000_000
CLOSE_S = 2.0  # for what has not been sent; the exporter alone would try for ten seconds
NO_ROUTE = "other"
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})

log = logging.getLogger(__name__)


class Tracer:
    """Makes the spans of requests.

    Args:
        provider: of the SDK; takes the spans and sends them.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer: trace.Tracer = provider.get_tracer(NAME)
        self._carried = TraceContextTextMapPropagator()

    def record(
        self, scope: Scope, route: str, status: int, timings: Timings, facts: Mapping[str, Any]
    ) -> str:
        """Make the spans of an HTTP request that is over; returns its trace id, 32 hexadecimal digits.

        Args:
            scope: of the request, with the client's `traceparent` among the headers if it sent one.
            route: the template that it matched, or "other".
            status: of the answer.
            timings: of its parts.
            facts: of the log line: model, images and whatever else is known.
        """
        name, conventional = _span_name(scope["method"], route), _conventional(scope, route, status)
        return self._record(name, conventional, scope["headers"], timings, facts)

    def record_call(
        self,
        method: str,
        headers: Headers,
        code: str,
        is_fault: bool,
        timings: Timings,
        facts: Mapping[str, Any],
    ) -> str:
        """Make the spans of a gRPC call that is over; returns its trace id.

        Args:
            method: with its service, such as `inference.GRPCInferenceService/ModelInfer`, or "other".
            headers: its metadata, with the client's `traceparent` if it sent one.
            code: with which it ended, such as `NOT_FOUND`.
            is_fault: of the service, not of the client.
            timings: of its parts.
            facts: of the log line.
        """
        is_known = method != NO_ROUTE
        conventional = {
            "rpc.system.name": "grpc",
            "rpc.method": method if is_known else "_OTHER",
            "rpc.response.status_code": code,
        }
        if is_fault:
            conventional["error.type"] = code
        return self._record(method if is_known else "grpc", conventional, headers, timings, facts)

    def _record(
        self,
        name: str,
        conventional: Mapping[str, str | int],
        headers: Headers,
        timings: Timings,
        facts: Mapping[str, Any],
    ) -> str:
        clock = time_ns() - int(monotonic() * NS)  # from the monotonic clock to the time of day

        def at(seconds: float) -> int:
            return clock + int(seconds * NS)

        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        span = self._tracer.start_span(
            name,
            self._carried.extract(carrier),
            SpanKind.SERVER,
            {**conventional, **{f"capsnet.{name}": fact for name, fact in facts.items()}},
            start_time=at(timings.began),
        )
        if "error.type" in conventional:
            span.set_status(Status(StatusCode.ERROR))
        if span.is_recording():
            inside = trace.set_span_in_context(span)
            for name, begin, end, batch_images in timings.parts:
                batch = None if batch_images is None else {"capsnet.batch_images": batch_images}
                part = self._tracer.start_span(name, inside, attributes=batch, start_time=at(begin))
                part.end(at(end))
        span.end()
        return trace.format_trace_id(span.get_span_context().trace_id)

    def close(self) -> None:
        """Send what has not been sent, but give up after CLOSE_S: a collector may be gone. Blocks."""
        closing = Thread(target=self._provider.shutdown, daemon=True)  # which no exit waits for
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            log.warning("the collector of traces did not answer within %g s; the last are lost", CLOSE_S)


def _span_name(method: str, route: str) -> str:
    """`POST /classify`: a name that clients cannot make up, so that there are few."""
    known = method if method in METHODS else "HTTP"
    return known if route == NO_ROUTE else f"{known} {route}"


def _conventional(scope: Scope, route: str, status: int) -> dict[str, str | int]:
    """The attributes of the semantic conventions for HTTP servers."""
    method = scope["method"]
    attributes: dict[str, str | int] = {
        "http.request.method": method if method in METHODS else "_OTHER",
        "url.path": scope["path"],
        "url.scheme": scope.get("scheme", "http"),
        "http.response.status_code": status,
    }
    if route != NO_ROUTE:
        attributes["http.route"] = route
    if status >= 500:
        attributes["error.type"] = str(status)
    return attributes


def resource() -> Any:
    """What the service is called: OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES, else `capsnet`."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    return Resource.create({"service.name": NAME}).merge(OTELResourceDetector().detect())


def make_tracer() -> Tracer:
    """A tracer that sends to where OpenTelemetry's variables say; needs the extra `otel`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)  # close() does it, within its time
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)
