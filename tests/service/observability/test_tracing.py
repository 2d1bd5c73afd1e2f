"""Traces of requests: spans, the client's trace, and what reaches a collector."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed; the extra otel brings it")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from service.observability.timings import Part, begin_timings
from service.observability.tracing import Tracer
from service.settings import Settings, SettingsError, read_settings
from tests.service.observability.test_timings import picture
from tests.support.live_process import live_process
from tests.support.live_service import wait_until
from tests.support.tiny_bundle import write_bundle

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SCOPE = {"method": "POST", "path": "/classify", "headers": []}


@contextmanager
def collector() -> Iterator[tuple[str, list[Span]]]:
    """Where an exporter may send spans to, and those that have come."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                assert any(one.value.string_value == "capsnet" for one in resource.resource.attributes)
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", spans
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_is_a_span_of_its_clients_trace_with_its_parts(tmp_path, monkeypatch, workers):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with collector() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        facts = {"tracing": True, "workers": workers}
        with live_process(tmp_path / "models", tmp_path / "log", **facts) as service:
            sent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            service.client.post("/classify", files={"images": picture()}, headers=sent).raise_for_status()
            service.stop()  # what has not been sent is sent now
            assert service.running.wait(60) == 0
            lines = [line for line in service.lines if line.get("path") == "/classify"]
        wait_until(lambda: any(span.name == "POST /classify" for span in spans))
    [request] = [span for span in spans if span.name == "POST /classify"]
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    inside = [span for span in spans if span.parent_span_id == request.span_id]
    assert [span.name for span in inside] == ["receive", "parse", "decode", "queue", "compute", "encode"]
    for span in inside:
        assert request.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    attributes = {one.key: one.value for one in request.attributes}
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["capsnet.model"].string_value == "tiny/1"
    assert [line["trace_id"] for line in lines] == [TRACE]


def recorded(status: int, *parts: Part) -> list:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    timings = begin_timings()
    timings.add(*parts)
    Tracer(provider).record(SCOPE, "/classify", status, timings, {"images": 3})
    return list(exporter.get_finished_spans())


def test_a_request_without_a_trace_begins_one():
    [span] = recorded(200)
    assert span.parent is None
    assert span.attributes["capsnet.images"] == 3


@pytest.mark.parametrize(("status", "is_error"), [(200, False), (422, False), (503, True)])
def test_a_fault_of_the_service_is_an_error_of_its_span(status, is_error):
    [span] = recorded(status)
    assert (span.status.status_code.name == "ERROR") == is_error


def test_parts_keep_their_times():
    parts = recorded(200, Part("queue", 10.0, 10.5), Part("compute", 10.5, 12.0))[:2]
    assert [span.name for span in parts] == ["queue", "compute"]
    assert [round((span.end_time - span.start_time) / 1e6) for span in parts] == [500, 1500]
    assert parts[0].end_time == parts[1].start_time


def test_without_the_packages_it_is_refused_with_the_extra(monkeypatch):
    monkeypatch.setattr("service.settings.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"CAPSNET_TRACING=.*pip install -e '.\[otel\]'"):
        read_settings(tracing="true")
    assert not Settings().tracing
