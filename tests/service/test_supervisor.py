"""Several worker processes behind one port."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from service.settings import Settings, SettingsError, read_settings
from service.supervisor import share_of
from tests.support.live_process import LiveProcess, live_process
from tests.support.live_service import wait_until
from tests.support.tiny_bundle import write_bundle

LIMIT_S = 120


def workers_of(service: LiveProcess) -> set[int]:
    """The process ids of the workers that accept connections, by the log; dead ones are left out."""
    said = [line["message"] for line in service.lines if line["logger"] == "service.supervisor"]
    pids = {int(words.split()[1]) for words in said if "accepts connections" in words}
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def serving_pids(service: LiveProcess, requests: int) -> set[float]:
    """The start times, one for each process, of those that answer on new connections."""
    url = f"{service.client.base_url}/metrics"
    texts = [httpx.get(url).text for _ in range(requests)]
    return {
        float(line.split()[1])
        for text in texts
        for line in text.splitlines()
        if line.startswith("process_start_time_seconds ")
    }


def test_answers_come_from_both_workers(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        wait_until(lambda: len(serving_pids(service, 20)) == 2)
        service.stop()
        assert service.running.wait(LIMIT_S) == 0


def test_a_killed_worker_is_replaced_and_the_port_stays_open(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        before = workers_of(service)
        assert len(before) == 2
        killed = before.pop()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(workers_of(service) - {killed}) == 2)
        for _ in range(20):
            assert httpx.get(f"{service.client.base_url}/readyz").status_code == 200
        service.stop()
        assert service.running.wait(LIMIT_S) == 0


def ask_until_closed(service: LiveProcess, faults: list[str]) -> None:
    """Send requests on one connection until the service closes it; notes what was not answered."""
    with httpx.Client(base_url=service.client.base_url, timeout=LIMIT_S) as client:
        try:
            while True:
                answer = client.get("/models").raise_for_status()
                if answer.headers.get("connection") == "close":
                    return
        except httpx.HTTPError as error:
            faults.append(repr(error))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drain_under_load_loses_no_request(tmp_path, number):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    faults: list[str] = []
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        clients = [threading.Thread(target=ask_until_closed, args=(service, faults)) for _ in range(8)]
        for client in clients:
            client.start()
        wait_until(lambda: len(serving_pids(service, 20)) == 2)  # the clients are connected by now
        service.running.send_signal(number)
        assert service.running.wait(LIMIT_S) == 0
        for client in clients:
            client.join(LIMIT_S)
        assert faults == []


def test_workers_that_cannot_start_end_the_service_with_their_status(tmp_path):
    command = [sys.executable, "-m", "service.cli", "--models", str(tmp_path), "--port", "0"]
    command += ["--device", "cpu", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "a worker cannot start" in done.stderr
    assert done.stdout == ""


def test_threads_and_limits_are_shared_out():
    whole = Settings(workers=2, device="cpu", threads=8, decode_threads=4, queue_images=2048)
    share = share_of(whole)
    assert (share.threads, share.decode_threads, share.queue_images) == (4, 2, 1024)
    assert share.uploads_bytes == whole.uploads_bytes // 2


def test_a_share_is_never_too_small_for_one_request():
    share = share_of(Settings(workers=64, device="cpu", threads=2))
    assert share.threads == share.decode_threads == 1
    assert share.queue_images >= share.max_reconstructions
    assert share.max_body_bytes <= share.uploads_bytes * 3 // 4


def test_several_workers_on_a_gpu_are_refused():
    with pytest.raises(SettingsError, match="CAPSNET_DEVICE=cpu"):
        read_settings(workers=2, device="cuda")
