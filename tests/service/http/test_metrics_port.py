"""/metrics on a port of its own."""

from pathlib import Path

import httpx
import pytest

from service.settings import SettingsError, read_settings
from tests.support.live_process import live_process
from tests.support.live_service import free_port, wait_until
from tests.support.tiny_bundle import write_bundle

LIMIT_S = 60


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_bundle(folder / "tiny" / "1")
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_each_port_answers_what_is_its_own(models, tmp_path, workers):
    port = free_port()
    settings = {"metrics_port": port, "workers": workers, "api_keys": "secret"}
    with (
        live_process(models, tmp_path / "log", **settings) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S) as other,
    ):
        for path in ("/healthz", "/readyz", "/v2/health/ready"):
            assert (service.client.get(path).status_code, other.get(path).status_code) == (200, 200)
        found = other.get("/metrics")
        assert found.status_code == 200
        assert "capsnet_requests_total" in found.text
        refused = service.client.get("/metrics")
        assert refused.status_code == 404
        assert refused.json()["type"] == "/problems/not-found"
        assert f"port {port} has it" in refused.json()["detail"]
        for path in ("/models", "/", "/classify", "/nothing"):
            answer = other.get(path, headers={"X-API-Key": "secret"})
            assert (answer.status_code, "it has /healthz, /metrics" in answer.json()["detail"]) == (404, True)
        assert service.client.get("/models", headers={"X-API-Key": "secret"}).status_code == 200
        service.stop()
        assert service.running.wait(LIMIT_S) == 0
        wait_until(lambda: not _answers(port))


def test_without_the_setting_metrics_are_on_the_port_of_all(models, tmp_path):
    with live_process(models, tmp_path / "log") as service:
        assert service.client.get("/metrics").status_code == 200


def test_a_port_for_two_things_is_refused():
    with pytest.raises(SettingsError, match="CAPSNET_METRICS_PORT and CAPSNET_PORT are both 8000"):
        read_settings(port=8000, metrics_port=8000)
    with pytest.raises(SettingsError, match="CAPSNET_METRICS_PORT and CAPSNET_GRPC_PORT are both 8001"):
        read_settings(grpc_port=8001, metrics_port=8001)


def test_a_port_in_use_is_one_line(models, tmp_path):
    with live_process(models, tmp_path / "log") as service:
        taken = service.address[1]
        with (
            pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{taken}"),
            live_process(models, tmp_path / "second", metrics_port=taken),
        ):
            pass


def _answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/readyz")
    except httpx.TransportError:
        return False
    return True
