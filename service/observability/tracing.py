"""Traces of requests, for OpenTelemetry: a span for the request and one for each of its parts.

The spans are made of a request's timings once it is over, so a request that is not sampled costs next to
nothing, and one that is takes no longer. OpenTelemetry's own variables say where they go, how many are
sampled, and what the service is called: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME.
"""

import os
from collections.abc import Mapping
from time import monotonic, time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from service.observability.timings import Timings

NAME = "capsnet"
NS = 1_000_000_000
CLOSE_MS = 2000  # for what has not been sent


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
        """Make the spans of a request that is over; returns its trace id, 32 hexadecimal digits.

        Args:
            scope: of the request, with the client's `traceparent` among the headers if it sent one.
            route: the template that it matched.
            status: of the answer.
            timings: of its parts.
            facts: of the log line: model, images and whatever else is known.
        """
        clock = time_ns() - int(monotonic() * NS)  # from the monotonic clock to the time of day

        def at(seconds: float) -> int:
            return clock + int(seconds * NS)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            f"{scope['method']} {route}",
            self._carried.extract(headers),
            SpanKind.SERVER,
            {
                "http.request.method": scope["method"],
                "http.route": route,
                "url.path": scope["path"],
                "http.response.status_code": status,
                **{f"capsnet.{name}": value for name, value in facts.items()},
            },
            start_time=at(timings.began),
        )
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        if span.is_recording():
            inside = trace.set_span_in_context(span)
            for name, begin, end in timings.parts:
                self._tracer.start_span(name, inside, start_time=at(begin)).end(at(end))
        span.end()
        return trace.format_trace_id(span.get_span_context().trace_id)

    def close(self) -> None:
        """Send what has not been sent, for as long as that may take. Blocks."""
        self._provider.force_flush(CLOSE_MS)
        self._provider.shutdown()


def make_tracer() -> Tracer:
    """A tracer that sends to where OpenTelemetry's variables say; needs the extra `otel`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", NAME)
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)
