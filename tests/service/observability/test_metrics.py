"""What a scrape says, of requests, queues, batches and models."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.inference.batcher import Batcher
from service.models.gauges import ModelGauges
from service.models.scanner import Bundles
from service.observability.metrics import Metrics
from service.observability.process_totals import ProcessTotals
from service.observability.request_metrics import FOLDER, MAX_LABELS, RequestMetrics
from tests.support.live_service import live_service, settings_for, wait_until
from tests.support.small_pictures import to_npy
from tests.support.tiny_bundle import write_bundle

DIGITS = list("0123456789")
POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series_of(text: str) -> Series:
    """Every sample by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float | None:
    return series_of(text).get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("models")
    write_bundle(root / "tiny" / "1")
    broken = write_bundle(root / "tiny" / "2")
    (broken / "samples.npz").write_bytes(b"")
    with live_service(settings_for(root)) as client:
        yield client


def test_requests_are_counted_by_the_template_of_their_route_and_by_status(client):
    def counted() -> list[float]:
        text, route = client.get("/metrics").text, "/models/{name}"
        return [
            value(text, "capsnet_requests_total", route=route, status="200"),
            value(text, "capsnet_requests_total", route=route, status="404"),
            value(text, "capsnet_request_duration_seconds_count", route=route),
        ]

    names = ("tiny", "nothing", "nobody")
    for name in names:
        client.get(f"/models/{name}")
    before = counted()
    for name in names:
        client.get(f"/models/{name}")
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 2, 3]


def test_paths_without_a_route_add_no_series_each(client):
    client.get("/no/such/path")
    before = series_of(client.get("/metrics").text)
    for index in range(20):
        client.get(f"/no/such/path/{index}")
        client.request("POST", f"/another/{index}", content=b"x")
    after = series_of(client.get("/metrics").text)
    assert {name for name, _ in after.keys() - before.keys()} <= {
        "capsnet_requests_total",  # of the first scrape itself
        *(f"capsnet_request_duration_seconds_{part}" for part in ("bucket", "count", "sum")),
    }
    new = {dict(labels).get("route") for _, labels in after.keys() - before.keys()}
    assert new <= {"/metrics"}
    other = ("capsnet_requests_total", frozenset({("route", "other"), ("status", "404")}))
    assert after[other] - before[other] == 40


def test_waiting_and_computing_are_told_apart_and_batches_by_size(client):
    before = client.get("/metrics").text
    sweep = {"dimensions": [0], "start": 0.0, "stop": 0.2, "step": 0.1}
    assert len(client.post("/reconstruct", json={**POSE, "sweep": sweep}).json()["reconstructions"]) == 3
    after = client.get("/metrics").text

    def grown(name: str) -> float:
        tiny = {"model": "tiny", "version": "1"}
        return value(after, name, **tiny) - value(before, name, **tiny)

    assert grown("capsnet_queue_wait_seconds_count") == 1
    assert grown("capsnet_compute_seconds_count") == grown("capsnet_batch_images_count") == 1
    assert grown("capsnet_batch_images_sum") == 3
    assert grown("capsnet_compute_seconds_sum") > 0
    assert grown("capsnet_queue_wait_seconds_sum") >= 0


def test_a_loaded_version_is_told_with_its_device_and_provider(client):
    labels = {"model": "tiny", "version": "1", "device": "cpu", "provider": "CPUExecutionProvider"}
    assert value(client.get("/metrics").text, "capsnet_model_loaded", **labels) == 1


def test_a_refused_bundle_is_counted_and_named(client):
    text = client.get("/metrics").text
    assert value(text, "capsnet_refusals_total", model="tiny") == 1
    assert value(text, "capsnet_model_refused", model="tiny", version="2") == 1
    assert value(text, "capsnet_model_refused", model="tiny", version="1") is None


def test_a_loaded_version_whose_files_go_bad_is_named_as_refused_and_as_loaded(tmp_path):
    bundle = write_bundle(tmp_path / "tiny" / "1")
    with live_service(settings_for(tmp_path, rescan_s=0.05)) as client:
        assert value(client.get("/metrics").text, "capsnet_model_refused", model="tiny", version="1") is None
        (bundle / "encoder.onnx").write_bytes(b"no graph")

        def is_refused() -> bool:
            text = client.get("/metrics").text
            return value(text, "capsnet_model_refused", model="tiny", version="1") == 1

        wait_until(is_refused)
        labels = {"model": "tiny", "version": "1", "device": "cpu", "provider": "CPUExecutionProvider"}
        assert value(client.get("/metrics").text, "capsnet_model_loaded", **labels) == 1


def test_a_version_that_was_taken_down_or_superseded_is_not_refused(tmp_path):
    for version in (1, 2):
        write_bundle(tmp_path / "tiny" / str(version))
    admin = {"Authorization": "Bearer operator"}
    with live_service(settings_for(tmp_path, versions_kept=1, admin_key="operator")) as client:
        assert "capsnet_model_refused{" not in client.get("/metrics").text
        assert client.post("/v2/repository/models/tiny/unload", headers=admin).status_code == 200
        assert "capsnet_model_refused{" not in client.get("/metrics").text


def test_the_process_tells_its_memory_and_its_time(client):
    text = client.get("/metrics").text
    assert value(text, "process_resident_memory_bytes") > 10 * 2**20
    assert value(text, "process_cpu_seconds_total") > 0


def test_processor_time_is_not_lost_with_a_process_that_ends():
    def seconds() -> float:
        [metric] = [one for one in totals.collect() if one.name == "process_cpu_seconds"]
        return metric.samples[0].value

    totals = ProcessTotals(lambda: [os.getpid()])
    before = seconds()
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert seconds() - before >= 0.45


def test_a_worker_that_replaces_another_goes_on_with_its_counts_in_the_same_files(tmp_path):
    code = (
        "import os\n"
        "from service.observability.request_metrics import RequestMetrics, count_as_worker\n"
        "count_as_worker(0)\n"
        "metrics = RequestMetrics()\n"
        "metrics.answered('/classify', 200, 0.1)\n"
        "os.write(1, metrics.scrape())\n"
        "os._exit(9)\n"
    )
    for count in (1, 2):
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {FOLDER: str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert value(ended.stdout, "capsnet_requests_total", route="/classify", status="200") == count
        assert len(list(tmp_path.glob("*.db"))) == 2


def test_the_counts_of_a_model_are_there_before_its_first_bundle_is_refused(tmp_path, monkeypatch):
    bundle = write_bundle(tmp_path / "broken" / "1")
    (bundle / "samples.npz").write_bytes(b"")
    seen = []

    def refused(metrics: Metrics, model: str) -> None:
        seen.append(value(metrics.scrape().decode(), "capsnet_refusals_total", model=model))

    monkeypatch.setattr(Metrics, "refused", refused)
    asyncio.run(Bundles(settings_for(tmp_path), Metrics()).scan())
    assert seen == [0]


def test_every_metric_is_described_and_counts_in_base_units(client):
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    ours = [family for family in families if not family.name.startswith("process_")]
    assert len(ours) >= 10
    for family in ours:
        assert family.name.startswith("capsnet_")
        assert family.documentation
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_images"))


def test_a_scrape_is_answered_in_prometheus_text_format(client):
    for accept in ("*/*", "application/openmetrics-text;version=nonsense", "text/plain;version=1.0.0"):
        answer = client.get("/metrics", headers={"Accept": accept})
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_scrape_is_answered_while_nothing_is_loaded(tmp_path):
    with live_service(settings_for(tmp_path / "nothing"), ready=False) as client:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert "capsnet_model_loaded{" not in answer.text


def test_a_version_that_is_taken_down_leaves_no_series(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_service(settings_for(tmp_path / "models", rescan_s=0.05, versions_kept=1)) as client:
        write_bundle(tmp_path / "aside" / "tiny" / "2").rename(tmp_path / "models" / "tiny" / "2")
        wait_until(lambda: value(client.get("/metrics").text, "capsnet_drops_total", model="tiny") == 1)
        text = client.get("/metrics").text
        assert 'version="2"' in text
        assert 'version="1"' not in text


def test_a_version_that_is_loaded_anew_keeps_its_series_when_its_former_self_goes():
    metrics = Metrics()
    metrics.model("tiny", 1)
    anew = metrics.model("tiny", 1)
    metrics.dropped("tiny", 1)
    anew.ran(5, 0.01)
    text = metrics.scrape().decode()
    assert value(text, "capsnet_batch_images_sum", model="tiny", version="1") == 5
    metrics.dropped("tiny", 1)
    assert 'version="1"' not in metrics.scrape().decode()


def test_the_depth_of_a_queue_is_told_in_images():
    metrics, go_on, began = Metrics(), threading.Event(), threading.Event()

    def run(pixels: np.ndarray, **_: object) -> tuple[np.ndarray]:
        began.set()
        go_on.wait(10)
        return (pixels,)

    observer = metrics.model("tiny", 1)
    batcher = Batcher(
        "tiny/1",
        parallel_batches=1,
        max_batch=4,
        queue_images=100,
        deadline_ms=10_000,
        metrics=observer,
    )
    queue = batcher.add_graph(run)
    engine = SimpleNamespace(device="cpu", provider="CPUExecutionProvider")
    served = SimpleNamespace(name="tiny", version=1, batcher=batcher, engine=engine)
    metrics.register(ModelGauges(SimpleNamespace(loaded=lambda: [served], index=list)))

    def depth() -> float | None:
        return value(metrics.scrape().decode(), "capsnet_queue_images", model="tiny", version="1")

    async def fill_and_empty() -> tuple[float | None, float | None]:
        first = asyncio.create_task(batcher.submit(queue, np.zeros((4, 1), np.float32)))
        await asyncio.to_thread(began.wait, 10)
        others = [asyncio.create_task(batcher.submit(queue, np.zeros((n, 1), np.float32))) for n in (3, 2)]
        await asyncio.sleep(0)
        full = depth()
        go_on.set()
        await asyncio.gather(first, *others)
        return full, depth()

    try:
        assert asyncio.run(fill_and_empty()) == (5, 0)
    finally:
        batcher.close()


def test_counts_from_many_threads_add_up():
    metrics, requests = Metrics(), RequestMetrics()
    version = metrics.model("tiny", 1)

    def count() -> None:
        for _ in range(500):
            requests.answered("/classify", 200, 0.001)
            version.ran(2, 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = (metrics.scrape() + requests.scrape()).decode()
    assert value(text, "capsnet_requests_total", route="/classify", status="200") == 2000
    assert value(text, "capsnet_batch_images_sum", model="tiny", version="1") == 4000


def test_two_applications_count_apart():
    one, other = RequestMetrics(), RequestMetrics()
    one.answered("/classify", 200, 0.001)
    assert 'route="/classify"' in one.scrape().decode()
    assert 'route="/classify"' not in other.scrape().decode()


def test_the_route_is_in_the_openapi_document(client):
    operation = client.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    assert list(operation["responses"]["200"]["content"]) == ["text/plain"]


def test_what_a_model_names_is_counted_by_its_label():
    requests = RequestMetrics()
    requests.predicted("tiny", ["3", "3", "7"], DIGITS)
    text = requests.scrape().decode()
    assert value(text, "capsnet_predictions_total", model="tiny", label="3") == 2
    assert value(text, "capsnet_predictions_total", model="tiny", label="7") == 1


def test_a_model_of_many_classes_has_a_bounded_number_of_labels():
    requests = RequestMetrics()
    classes = [str(label) for label in range(10 * MAX_LABELS)]
    requests.predicted("large", reversed(classes), classes)
    requests.predicted("tiny", ["3"], DIGITS)
    text = requests.scrape().decode()
    assert text.count('capsnet_predictions_total{label="') == MAX_LABELS + 2
    assert value(text, "capsnet_predictions_total", model="large", label="other") == 9 * MAX_LABELS
    assert value(text, "capsnet_predictions_total", model="large", label="99") == 1
    assert value(text, "capsnet_predictions_total", model="tiny", label="3") == 1


def test_versions_of_other_classes_share_the_labels_of_their_model():
    requests = RequestMetrics()
    for version in range(3):
        classes = [f"{version}-{label}" for label in range(MAX_LABELS - 1)]
        requests.predicted("tiny", classes, classes)
    text = requests.scrape().decode()
    assert text.count('capsnet_predictions_total{label="') == MAX_LABELS + 1
    assert value(text, "capsnet_predictions_total", model="tiny", label="other") == 2 * (MAX_LABELS - 1) - 1


PREDICT = """
import sys
from service.observability.request_metrics import MAX_LABELS, RequestMetrics
requests, first = RequestMetrics(), int(sys.argv[1])
classes = [str(label) for label in range(2000 + MAX_LABELS)]
requests.predicted("large", classes[first : first + MAX_LABELS], classes)
requests.predicted("large", [str(first), "0"], classes)
sys.stdout.buffer.write(requests.scrape())
"""


def test_labels_are_bounded_over_all_processes_of_a_service_that_live_or_have_died(tmp_path):
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for first in (0, 50, 1000, 2000):
        command = [sys.executable, "-c", PREDICT, str(first)]
        text = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode()
    assert text.count('capsnet_predictions_total{label="') == MAX_LABELS + 1
    assert value(text, "capsnet_predictions_total", model="large", label="0") == 1 + 5
    assert value(text, "capsnet_predictions_total", model="large", label="50") == 1 + 2
    counted = series_of(text).items()
    assert sum(number for (name, _), number in counted if name == "capsnet_predictions_total") == 4 * (
        MAX_LABELS + 2
    )


def test_answers_count_their_labels_and_their_problems(client):
    zeros = to_npy(np.zeros((1, 28, 28, 1), np.float32))
    answer = client.post("/classify", content=zeros, headers={"Content-Type": "application/x-npy"})
    label = answer.json()["results"][0]["labels"][0]
    client.get("/models/nobody-knows")
    text = client.get("/metrics").text
    assert value(text, "capsnet_predictions_total", model="tiny", label=label) >= 1
    assert value(text, "capsnet_problems_total", type="/problems/unknown-model") >= 1
