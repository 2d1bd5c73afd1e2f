"""Traces of requests: spans, the client's trace, and what reaches a collector."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed; the extra otel brings it")

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tritonclient.grpc import service_pb2 as oip

from service.observability.timings import Part, Timings
from service.observability.tracing import Tracer, resource
from service.settings import Settings, SettingsError, read_settings
from tests.service.observability.test_timings import picture
from tests.support.live_process import live_process
from tests.support.live_service import wait_until
from tests.support.tiny_bundle import write_bundle

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
INFER = "inference.GRPCInferenceService/ModelInfer"
SCOPE = {"method": "POST", "path": "/classify", "headers": []}


@contextmanager
def collector(*, answers: bool = True) -> Iterator[tuple[str, list[Span]]]:
    """Where an exporter may send spans to, and those that have come; one that hangs takes none."""
    spans: list[Span] = []
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if not answers:
                gone.wait()
                return
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                assert any(one.value.string_value == "capsnet" for one in sent.resource.attributes)
                spans.extend(span for scope in sent.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", spans
        gone.set()
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
    [compute] = [span for span in inside if span.name == "compute"]
    assert [(one.key, one.value.int_value) for one in compute.attributes] == [("capsnet.batch_images", 1)]
    assert [line["trace_id"] for line in lines] == [TRACE]


def test_a_grpc_call_is_a_span_of_its_clients_trace_with_its_parts(tmp_path, monkeypatch):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    asked = oip.ModelInferRequest(model_name="tiny", raw_input_contents=[bytes(784)])
    asked.inputs.add(name="pixels", datatype="UINT8", shape=[1, 28, 28, 1])
    with collector() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        facts = {"tracing": True, "grpc_port": 0}
        with live_process(tmp_path / "models", tmp_path / "log", **facts) as service:
            with grpc.insecure_channel(service.grpc_address) as channel:
                sent = [("traceparent", f"00-{TRACE}-{PARENT}-01")]
                channel.unary_unary(f"/{INFER}")(asked.SerializeToString(), metadata=sent, timeout=60)
            service.stop()
            assert service.running.wait(60) == 0
            [line] = [line for line in service.lines if line.get("path") == f"/{INFER}"]
        wait_until(lambda: any(span.name == INFER for span in spans))
    [call] = [span for span in spans if span.name == INFER]
    assert (call.trace_id.hex(), call.parent_span_id.hex()) == (TRACE, PARENT)
    inside = [span for span in spans if span.parent_span_id == call.span_id]
    assert [span.name for span in inside] == ["receive", "parse", "queue", "compute", "encode"]
    for span in inside:
        assert call.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    attributes = {one.key: one.value for one in call.attributes}
    assert attributes["capsnet.model"].string_value == "tiny/1"
    assert line["trace_id"] == TRACE


def test_a_collector_that_hangs_does_not_hold_up_the_end(tmp_path, monkeypatch):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with collector(answers=False) as (address, _):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        with live_process(tmp_path / "models", tmp_path / "log", tracing=True) as service:
            service.client.get("/models").raise_for_status()
            service.stop()
            assert service.running.wait(60) == 0
            assert any("collector of traces did not answer" in str(line) for line in service.lines)


def test_without_tracing_the_sdk_is_not_imported():
    code = "import sys, service.app; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("OTEL_SERVICE_NAME", "mine", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=ours,team=a", "ours"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=a", "capsnet"),
    ],
)
def test_the_service_has_the_name_that_opentelemetrys_variables_give(monkeypatch, variable, value, name):
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    monkeypatch.setenv(variable, value)
    assert resource().attributes["service.name"] == name


def recorded(status: int, *parts: Part, scope: dict = SCOPE, route: str = "/classify") -> list:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    timings = Timings()
    timings.add(*parts)
    Tracer(provider).record(scope, route, status, timings, {"images": 3})
    return list(exporter.get_finished_spans())


def test_a_request_without_a_trace_begins_one():
    [span] = recorded(200)
    assert span.parent is None
    assert span.attributes["capsnet.images"] == 3


@pytest.mark.parametrize(("status", "is_error"), [(200, False), (422, False), (503, True)])
def test_a_fault_of_the_service_is_an_error_of_its_span(status, is_error):
    [span] = recorded(status)
    assert (span.status.status_code.name == "ERROR") == is_error


def test_the_attributes_are_those_of_the_conventions_for_http():
    [span] = recorded(503)
    assert span.attributes == {
        "http.request.method": "POST",
        "http.route": "/classify",
        "http.response.status_code": 503,
        "url.path": "/classify",
        "url.scheme": "http",
        "error.type": "503",
        "capsnet.images": 3,
    }


def test_clients_cannot_make_up_names_of_spans():
    [span] = recorded(405, scope=SCOPE | {"method": "MADEUP", "path": "/made/up"}, route="other")
    assert span.name == "HTTP"
    assert span.attributes["http.request.method"] == "_OTHER"
    assert "http.route" not in span.attributes


def recorded_call(method: str, code: str, *, is_fault: bool) -> list:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    Tracer(provider).record_call(method, [], code, is_fault, Timings(), {"images": 3})
    return list(exporter.get_finished_spans())


def test_the_attributes_of_a_call_are_those_of_the_conventions_for_rpc():
    [span] = recorded_call(INFER, "UNAVAILABLE", is_fault=True)
    assert span.status.status_code.name == "ERROR"
    assert span.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": INFER,
        "rpc.response.status_code": "UNAVAILABLE",
        "error.type": "UNAVAILABLE",
        "capsnet.images": 3,
    }


def test_clients_cannot_make_up_names_of_spans_of_calls():
    [span] = recorded_call("other", "UNIMPLEMENTED", is_fault=False)
    assert (span.name, span.attributes["rpc.method"]) == ("grpc", "_OTHER")


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
