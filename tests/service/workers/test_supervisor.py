"""Several processes behind one port."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from service.http.keys import Keys
from service.settings import Settings, SettingsError, read_settings
from service.workers import supervisor
from service.workers.supervisor import Supervisor, share_of
from tests.support.live_process import KILLABLE, LINGERING, LiveProcess, live_process
from tests.support.live_service import is_closed, metric, wait_until
from tests.support.live_workers import pids
from tests.support.tiny_bundle import write_bundle

LIMIT_S = 120


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Iterator[LiveProcess]:
    """Two workers and the engine process, for tests that end none of them; it ends well.

    tiny has two versions, of which each test leaves the newer one answering, and a broken one; other is
    loaded on first use.
    """
    models = tmp_path_factory.mktemp("models")
    for version in ("tiny/1", "tiny/2", "other/1"):
        write_bundle(models / version)
    (models / "tiny" / "3").mkdir()
    (models / "tiny" / "3" / "manifest.json").write_text("{}")
    settings = {"workers": 2, "default_model": "tiny", "admin_key": "secret"}
    with live_process(models, tmp_path_factory.mktemp("log") / "log", **settings) as service:
        wait_until(lambda: len(answering(service, 20)) == 2)
        yield service
        service.stop()
        assert service.running.wait(LIMIT_S) == 0


def answering(service: LiveProcess, requests: int, path: str = "/readyz") -> set[str]:
    """The beginnings of request ids, one for each worker that answers on new connections."""
    url = f"{service.client.base_url}{path}"
    return {httpx.get(url, timeout=LIMIT_S).headers["x-request-id"][:16] for _ in range(requests)}


def replaced(service: LiveProcess) -> dict[str, float]:
    """How many processes of each kind have died and were replaced."""
    name = "capsnet_process_restarts_total"
    return {kind: service.metric(name, process=kind) for kind in ("worker", "engine")}


def classify(service: LiveProcess, model: str = "tiny") -> httpx.Response:
    pixels = {"name": "pixels", "shape": [1, 28, 28, 1], "datatype": "FP32", "data": [0.5] * 784}
    return httpx.post(
        f"{service.client.base_url}/v2/models/{model}/infer", json={"inputs": [pixels]}, timeout=LIMIT_S
    )


def is_taken_down(answer: httpx.Response) -> bool:
    """Whether it says so, and not that the process with the models is starting."""
    assert answer.status_code in (404, 503)
    return answer.status_code == 404 and "taken down by an operator" in answer.json()["error"]


def administer(service: LiveProcess, action: str) -> None:
    url = f"{service.client.base_url}/v2/repository/models/other/{action}"
    httpx.post(url, headers={"Authorization": "Bearer secret"}, timeout=LIMIT_S).raise_for_status()


def test_a_process_that_cannot_be_replaced_now_is_tried_again(monkeypatch, caplog):
    """But a service that cannot even begin ends."""

    def no_file_left(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    settings = Settings(workers=2)
    supervisor = Supervisor(settings, [], Keys(settings), serve_models=print, serve_requests=print, say=print)
    monkeypatch.setattr(SpawnContext, "Pipe", no_file_left)
    with pytest.raises(OSError, match="Too many open files"):
        supervisor._start_missing()
    supervisor._has_begun = True
    supervisor._start_missing()
    assert "cannot be started, and is tried again" in caplog.text
    started = []
    monkeypatch.setattr(Supervisor, "_start", lambda _, **which: started.append(which))
    supervisor._start_missing()
    assert [which["is_engine"] for which in started] == [True, False, False]


def test_the_engine_process_logs_what_becomes_of_models(undisturbed):
    logged = [line["message"] for line in undisturbed.lines if line["logger"].startswith("service.models")]
    assert any("loaded" in message for message in logged)
    assert any("refused" in message for message in logged)


def test_answers_come_from_all_workers_and_their_counts_are_added_up(undisturbed):
    counted = {"name": "capsnet_requests_total", "route": "/models", "status": "200"}
    expected = undisturbed.metric(**counted) + 20
    answering(undisturbed, 20, "/models")
    wait_until(lambda: undisturbed.metric(**counted) == expected)  # a request is counted after its answer
    for _ in range(6):  # whichever worker is asked
        with httpx.Client(base_url=undisturbed.client.base_url) as client:
            assert metric(client, **counted) == expected
    images = undisturbed.metric("capsnet_batch_images_sum", model="tiny")
    assert classify(undisturbed).status_code == 200
    assert undisturbed.metric("capsnet_batch_images_sum", model="tiny") == images + 1
    processes = pids(undisturbed, "worker") | pids(undisturbed, "the engine process")
    own = sum(_resident_bytes(pid) for pid in processes)
    assert undisturbed.metric("process_resident_memory_bytes") > 0.8 * own


def test_a_killed_worker_is_replaced_and_counted_its_counts_stay_and_the_port_stays_open(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        wait_until(lambda: len(pids(service, "worker")) == 2)  # the log comes a moment later
        before = pids(service, "worker")
        answering(service, 20)
        # A request is counted after its answer.
        wait_until(lambda: service.metric("capsnet_requests_total", route="/readyz") >= 20)
        killed = before.pop()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(pids(service, "worker") - {killed}) == 2)
        for _ in range(20):
            assert classify(service).status_code == 200
        assert service.metric("capsnet_requests_total", route="/readyz") >= 20
        assert replaced(service) == {"worker": 1, "engine": 0}
        service.stop()
        assert service.running.wait(LIMIT_S) == 0


def test_without_an_engine_process_requests_get_503_until_there_is_another_one_which_is_counted(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        wait_until(lambda: len(pids(service, "the engine process")) == 1)
        [engine] = pids(service, "the engine process")
        service.running.send_signal(signal.SIGSTOP)  # so that nobody starts the next one yet
        os.kill(engine, signal.SIGKILL)
        base_url = service.client.base_url
        wait_until(lambda: httpx.get(f"{base_url}/readyz", timeout=LIMIT_S).status_code == 503)
        refused = classify(service)
        assert refused.status_code == 503
        assert refused.json()["error"] == "the process with the models is starting; try again"
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{base_url}/metrics", timeout=LIMIT_S).status_code == 200
        service.running.send_signal(signal.SIGCONT)
        wait_until(lambda: classify(service).status_code == 200)
        assert len(pids(service, "worker")) == 2
        wait_until(lambda: replaced(service) == {"worker": 0, "engine": 1})  # each worker is told in its turn
        service.stop()
        assert service.running.wait(LIMIT_S) == 0


def test_the_only_model_stays_down_over_the_death_of_the_engine_process_and_can_be_loaded_again(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2, admin_key="admin") as service:
        wait_until(lambda: len(pids(service, "the engine process")) == 1)
        operator = {"x-api-key": "admin"}
        place = "/v2/repository/models/tiny"
        assert service.client.post(f"{place}/unload", headers=operator).status_code == 200
        [engine] = pids(service, "the engine process")
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: pids(service, "the engine process") - {engine})
        wait_until(lambda: is_taken_down(classify(service)))
        wait_until(lambda: service.client.post(f"{place}/load", headers=operator).status_code == 200)
        wait_until(lambda: classify(service).status_code == 200)
        wait_until(lambda: replaced(service) == {"worker": 0, "engine": 1})  # each worker is told in its turn


def test_a_frozen_engine_process_leaves_no_request_waiting_and_is_replaced(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2, deadline_ms=5000) as service:
        wait_until(lambda: len(pids(service, "the engine process")) == 1)
        [frozen] = pids(service, "the engine process")
        os.kill(frozen, signal.SIGSTOP)
        paths = ["/healthz", "/metrics", "/readyz", "/models", "/models/tiny", "/v2/models/tiny/ready"]
        with ThreadPoolExecutor() as pool:
            classifying = pool.submit(classify, service)
            urls = [f"{service.client.base_url}{path}" for path in paths]
            found = list(pool.map(lambda url: httpx.get(url, timeout=8), urls))  # all before it is replaced
        assert [answer.status_code for answer in found] == [200, 200] + [503] * 4
        assert "capsnet_requests_total" in found[1].text
        for answer in found[2:]:
            assert answer.json()["detail"] == "the process with the models does not answer; try again"
            assert answer.headers["retry-after"] == "1"
        assert classifying.result().status_code == 504  # its own deadline
        wait_until(lambda: bool(pids(service, "the engine process") - {frozen}))
        wait_until(lambda: classify(service).status_code == 200)


def test_an_engine_process_whose_inference_thread_dies_is_replaced(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    settings = {"program": KILLABLE, "workers": 2, "threads": 1}
    with live_process(tmp_path / "models", tmp_path / "log", **settings) as service:
        wait_until(lambda: len(pids(service, "the engine process")) == 1)
        [engine] = pids(service, "the engine process")
        os.kill(engine, signal.SIGUSR1)
        refused = classify(service)  # which the thread wakes up for
        assert refused.status_code == 503
        assert "died" in refused.json()["error"]
        wait_until(lambda: replaced(service) == {"worker": 0, "engine": 1})
        wait_until(lambda: classify(service).status_code == 200)


def test_what_an_administrator_unloads_is_unloaded_in_all_workers(undisturbed):
    assert {classify(undisturbed, "other").status_code for _ in range(10)} == {200}  # loaded by the first one
    administer(undisturbed, "unload")
    answers = [classify(undisturbed, "other") for _ in range(10)]
    assert {answer.status_code for answer in answers} == {404}
    assert "taken down by an operator" in answers[0].json()["error"]
    administer(undisturbed, "load")
    assert {classify(undisturbed, "other").status_code for _ in range(10)} == {200}


def test_a_rule_holds_in_all_workers_once_the_administrator_has_the_answer(undisturbed):
    url = f"{undisturbed.client.base_url}/v2/repository/models/tiny/traffic"
    key = {"Authorization": "Bearer secret"}
    for pinned in (1, 2, 1):
        httpx.put(url, json={"pinned": pinned}, headers=key, timeout=LIMIT_S).raise_for_status()
        assert {newest(undisturbed) for _ in range(10)} == {pinned}
    httpx.delete(url, headers=key, timeout=LIMIT_S).raise_for_status()
    assert {newest(undisturbed) for _ in range(10)} == {2}


def test_no_client_gets_an_older_version_after_a_newer_one(tmp_path):
    models = tmp_path / "models"
    write_bundle(models / "tiny" / "1")
    seen: list[list[int]] = []
    with live_process(models, tmp_path / "log", workers=2, rescan_s=0.05, versions_kept=1) as service:
        clients = [threading.Thread(target=watch_versions, args=(service, seen)) for _ in range(4)]
        for client in clients:
            client.start()
        for version in (2, 3):
            write_bundle(tmp_path / "aside" / "tiny" / str(version)).rename(models / "tiny" / str(version))
            wait_until(lambda version=version: newest(service) == version)
        for client in clients:
            client.join(LIMIT_S)
        assert [versions[-1] for versions in seen] == [3] * 4
        assert all(versions == sorted(versions) for versions in seen)
        wait_until(lambda: service.metric("capsnet_drops_total", model="tiny") == 2)  # workers gave them back


def newest(service: LiveProcess) -> int:
    return int(classify(service).json()["model_version"])


def watch_versions(service: LiveProcess, seen: list[list[int]]) -> None:
    """The versions that answer, each on a connection of its own, until it is version 3 for a while."""
    versions: list[int] = []
    while versions[-20:] != [3] * 20:
        versions.append(newest(service))
    seen.append(versions)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_drain_under_load_loses_no_request(tmp_path, number):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    faults: list[str] = []
    with live_process(tmp_path / "models", tmp_path / "log", program=LINGERING, workers=2) as service:
        clients = [threading.Thread(target=ask_until_closed, args=(service, faults)) for _ in range(8)]
        for client in clients:
            client.start()
        wait_until(lambda: len(answering(service, 20)) == 2)  # the clients are connected by now
        service.running.send_signal(number)
        assert service.running.wait(LIMIT_S) == 0
        for client in clients:
            client.join(LIMIT_S)
        assert faults == []


def test_a_second_interrupt_waits_for_no_client(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with (
        live_process(
            tmp_path / "models", tmp_path / "log", workers=2, deadline_ms=600_000, receive_ms=600_000
        ) as service,
        socket.create_connection(service.address) as stalled,
    ):
        stalled.sendall(b"POST /classify HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n1")
        wait_until(lambda: len(answering(service, 20)) == 2)
        service.running.send_signal(signal.SIGINT)
        wait_until(lambda: is_closed(service.address))
        service.running.send_signal(signal.SIGINT)
        service.running.wait(LIMIT_S)


def test_processes_that_cannot_start_end_the_service(tmp_path):
    command = [sys.executable, "-m", "service.cli", "--models", str(tmp_path), "--port", "0"]
    command += ["--device", "cpu", "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "no bundles" in done.stderr or "no bundle" in done.stderr
    assert "a process cannot start" in done.stderr
    assert "is replaced" not in done.stderr
    assert done.stdout == ""


def test_all_processes_end_with_a_supervisor_that_is_killed(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", workers=2) as service:
        wait_until(lambda: len(pids(service, "worker") | pids(service, "the engine process")) == 3)
        children = pids(service, "worker") | pids(service, "the engine process")
        service.running.kill()
        wait_until(lambda: not any(_is_running(pid) for pid in children))


def test_threads_and_memory_of_uploads_are_shared_out():
    whole = Settings(workers=2, threads=8, decode_threads=4)
    share = share_of(whole)
    assert (share.threads, share.decode_threads) == (8, 2)
    assert share.uploads_bytes == whole.uploads_bytes // 2


def test_pictures_that_wait_for_decoding_are_shared_out_and_images_of_a_request_are_not():
    share = share_of(Settings(workers=2, queue_images=1000))
    assert (share.decode_queue_share, share.queue_images) == (500, 1000)


def test_a_share_is_never_too_small_for_one_request():
    share = share_of(Settings(workers=64))
    assert share.decode_queue_share == share.max_images_per_request
    assert share.decode_threads == 1
    assert share.max_body_bytes <= share.uploads_bytes * 3 // 4


@pytest.mark.parametrize(
    ("cpus", "device", "expected"),
    [(1, "cpu", 1), (2, "auto", 1), (16, "cpu", 5), (2, "cuda", 1), (16, "cuda", 14), (64, "tensorrt", 16)],
)
def test_auto_goes_by_processors_and_device(monkeypatch, cpus, device, expected):
    monkeypatch.setattr("service.settings.usable_cpus", lambda: cpus)
    assert Settings(workers="auto", device=device).worker_count == expected


@pytest.mark.parametrize("given", ["0", "65", "-1", "many", "2.5", ""])
def test_a_number_of_workers_that_makes_no_sense_is_refused(given):
    with pytest.raises(SettingsError, match=r"CAPSNET_WORKERS=.*: expected 1 to 64, or auto"):
        read_settings(workers=given)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends between opening and reading
        return False
    return state != "Z"


def test_a_child_whose_supervisor_has_died_meanwhile_ends(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "setpgid", lambda *_: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(supervisor.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *_: 0))
    for parent, expected in ((os.getppid(), []), (os.getppid() + 1, [0])):
        process = SimpleNamespace(pid=parent)
        monkeypatch.setattr(supervisor.multiprocessing, "parent_process", lambda process=process: process)
        supervisor.begin_child()
        assert ended == expected
