"""capsnet-serve: one line at the start, one line when it cannot, and a gentle end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import onnxruntime as ort
import pytest

from service.cli import main
from tests.support.live_process import COLLECTING, live_process
from tests.support.live_service import free_port, is_closed, wait_until
from tests.support.paths import ROOT
from tests.support.tiny_bundle import write_bundle

LIMIT_S = 120
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHIPPED = ROOT / "models"
POSE = {"pose": [0.1, -0.2, 0.3, 0.05], "label": "1"}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings but the test's, and the signal handlers of before afterwards."""
    for name in list(os.environ):
        if name.startswith("CAPSNET_"):
            monkeypatch.delenv(name)
    handlers = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def assert_one_line(captured: pytest.CaptureFixture[str], *said: str) -> None:
    printed = captured.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("capsnet-serve: ")
    assert len(printed.err.splitlines()) == 1
    for words in said:
        assert words in printed.err


@contextmanager
def upload_under_way(
    models: Path, **settings: str
) -> Iterator[tuple[subprocess.Popen, socket.socket, bytes]]:
    """A service process, a connection on which it waits for a body, and that body."""
    body = b"BM" + bytes(1000)
    command = [sys.executable, "-m", "service.cli", "--models", str(models), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, **settings}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            port = int(process.stdout.readline().split("http://127.0.0.1:")[1].split()[0])
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
                lines = ["POST /classify HTTP/1.1", "Host: test", f"Content-Length: {len(body)}"]
                connection.sendall("\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode())
                assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the service reads the body now
                yield process, connection, body
        finally:
            process.kill()


def test_a_stalled_upload_holds_the_end_up_no_longer_than_the_deadline(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    with upload_under_way(tmp_path, CAPSNET_DEADLINE_MS="1000") as (process, connection, body):
        connection.sendall(body[:10])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_request_under_way_is_answered_after_sigterm(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    with upload_under_way(tmp_path) as (process, connection, body):
        address = connection.getpeername()
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_closed(address))  # it has heard the signal
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 422")
        assert process.wait(LIMIT_S) == 0


def test_it_says_where_what_and_on_which_device_and_ends_gently_on_sigterm(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    arguments = ["--models", str(tmp_path), "--port", "0", "--device", "cpu"]
    command = [sys.executable, "-m", "service.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            address = next(word for word in line.split() if word.startswith("http://"))
            assert "tiny/1 on cpu" in line
            assert httpx.get(f"{address}/readyz", timeout=LIMIT_S).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()


@contextmanager
def starting(models: Path, cache: Path) -> Iterator[subprocess.Popen]:
    """A service process that has just begun."""
    command = [sys.executable, "-m", "service.cli", "--models", str(models), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "CAPSNET_CACHE": str(cache)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def has_opened(process: subprocess.Popen, name: str) -> bool:
    """Whether the process has a file of such a name in its memory."""
    return name in Path(f"/proc/{process.pid}/maps").read_text()


def assert_ends_quietly(process: subprocess.Popen, number: int) -> None:
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert "error" not in said.lower()


@pytest.mark.parametrize(
    ("library", "number"), [("_pydantic_core", signal.SIGINT), ("onnxruntime", signal.SIGTERM)]
)
def test_a_signal_during_the_imports_ends_it_quietly(tmp_path, number, library):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with starting(tmp_path / "models", tmp_path) as process:
        wait_until(lambda: has_opened(process, library))
        assert_ends_quietly(process, number)


INTERRUPTING = """
import os, signal, sys

class Interrupting:  # asked before every import that is not done yet
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.modules.pop(sys.argv[1], None)
sys.meta_path.insert(0, Interrupting())
from service.cli import main
sys.exit(main(["--port", "70000"]))
"""


@pytest.mark.parametrize("module", ["argparse", "typing", "socket", "service.serve", "service.settings"])
def test_no_import_of_the_command_comes_before_it_can_be_interrupted(module):
    command = [sys.executable, "-c", INTERRUPTING, module]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stderr) == (0, "")


def is_named_by_a_process(folder: Path) -> bool:
    """Whether a process was started with the folder as an argument."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if str(folder) in file.read_text():
                return True
    return False


def test_a_signal_while_graphs_are_derived_ends_it_and_the_deriving(tmp_path):
    cache = tmp_path / "cache"
    with starting(SHIPPED, cache) as process:
        wait_until(lambda: is_named_by_a_process(cache / "cpu"))
        assert_ends_quietly(process, signal.SIGTERM)
    wait_until(lambda: not is_named_by_a_process(cache / "cpu"))
    assert not list(cache.rglob("plan.json"))


def test_a_garbage_collection_does_not_look_through_what_startup_has_made(tmp_path):
    write_bundle(tmp_path / "capsnet-mnist" / "1")
    with live_process(tmp_path, tmp_path / "log", program=COLLECTING) as service:
        service.running.send_signal(signal.SIGUSR1)
        wait_until(lambda: "tracked objects" in service.log.read_text().rpartition("\n")[0])
        [line] = [line for line in service.log.read_text().splitlines() if "tracked" in line]
        assert int(line.rpartition(" ")[2]) < 20_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_the_moment_it_is_ready_ends_it_quietly(tmp_path, number):
    write_bundle(tmp_path / "tiny" / "1")
    with starting(tmp_path, tmp_path / "cache") as process:
        assert process.stdout.readline().startswith("Serving tiny/1 ")
        assert_ends_quietly(process, number)


def test_the_end_of_a_terminal_drains_what_is_under_way(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    with upload_under_way(tmp_path) as (process, connection, body):
        address = connection.getpeername()
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: is_closed(address))  # it has heard the signal
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 422")
        assert process.wait(LIMIT_S) == 0


def test_a_service_that_outlives_its_terminal_serves_on(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does; children inherit it
    with upload_under_way(tmp_path) as (process, connection, body):
        process.send_signal(signal.SIGHUP)
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 422")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        assert not is_closed(connection.getpeername())


def test_a_refused_default_keeps_nobody_from_the_other_models_nor_from_its_mended_self(tmp_path):
    models = tmp_path / "models"
    write_bundle(models / "other" / "1")
    whole = (write_bundle(models / "tiny" / "1") / "encoder.onnx").read_bytes()
    (models / "tiny" / "1" / "encoder.onnx").write_bytes(whole[:100])
    with live_process(models, tmp_path / "log", default_model="tiny", rescan_s=0.1) as service:
        assert service.client.get("/readyz").json()["models"] == []
        assert service.client.get("/v2/models/other/ready").status_code == 200
        (models / "tiny" / "1" / "encoder.onnx").write_bytes(whole)
        wait_until(lambda: "tiny/1" in service.client.get("/readyz").json()["models"])


def test_a_bundle_published_while_idle_answers_without_any_setting(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    bundle = write_bundle(tmp_path / "aside" / "tiny" / "2")
    with live_process(tmp_path / "models", tmp_path / "log") as service:
        bundle.rename(tmp_path / "models" / "tiny" / "2")
        wait_until(lambda: service.client.post("/reconstruct", json=POSE).json()["version"] == 2)


def test_a_pipe_in_a_bundle_is_refused_and_keeps_nobody_from_the_end(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    bundle = write_bundle(tmp_path / "aside" / "tiny" / "2")
    (bundle / "encoder.onnx").unlink()
    os.mkfifo(bundle / "encoder.onnx")
    with live_process(tmp_path / "models", tmp_path / "log", rescan_s=0.1) as service:
        bundle.rename(tmp_path / "models" / "tiny" / "2")
        wait_until(lambda: service.metric("capsnet_model_refused", version="2") == 1)
        (newest, _) = service.client.get("/models/tiny").json()["versions"]
        assert newest["reason"] == "encoder.onnx is no regular file"
        service.stop()
        assert service.running.wait(LIMIT_S) == 0


def test_a_port_in_use_is_one_line(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--models", str(tmp_path), "--port", port]) == 1
    assert_one_line(capsys, port, "in use")


def test_a_host_that_is_not_ours_is_one_line(tmp_path, capsys):
    assert main(["--models", str(tmp_path), "--host", "no such host"]) == 1
    assert_one_line(capsys, "no such host")


def test_no_models_is_one_line(tmp_path, capsys):
    assert main(["--models", str(tmp_path), "--port", "0"]) == 1
    assert_one_line(capsys, str(tmp_path), "CAPSNET_MODELS")


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="CUDA can be had here")
def test_startup_fails_if_the_device_is_not_available(tmp_path: Path, capsys):
    write_bundle(tmp_path / "tiny" / "1")
    assert main(["--models", str(tmp_path), "--port", "0", "--device", "cuda"]) == 1
    assert_one_line(capsys, "cuda", "CUDAExecutionProvider")


@pytest.mark.skipif("CUDAExecutionProvider" in ort.get_available_providers(), reason="CUDA can be had here")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_startup_fails_without_a_default_model_if_the_device_is_not_available(tmp_path, workers):
    for model in ("first", "second"):
        write_bundle(tmp_path / model / "1")
    command = [sys.executable, "-m", "service.cli", "--models", str(tmp_path), "--port", "0"]
    command += ["--device", "cuda", "--workers", workers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert "device cuda needs CUDAExecutionProvider" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--port", "eighty"], "CAPSNET_PORT"), (["--device", "gpu"], "CAPSNET_DEVICE")]
)
def test_a_wrong_option_is_one_line(capsys, arguments, said):
    assert main(arguments) == 2
    assert_one_line(capsys, said, arguments[1])


def test_a_wrong_variable_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("CAPSNET_DEVICE", "gpu")
    assert main([]) == 2
    assert_one_line(capsys, "CAPSNET_DEVICE", "gpu")


def test_a_key_in_the_variable_of_clients_is_one_line(capsys, monkeypatch):
    monkeypatch.setenv("CAPSNET_API_KEY", "secret")
    assert main(["--port", "0"]) == 2
    assert_one_line(capsys, "CAPSNET_API_KEYS", "env -u CAPSNET_API_KEY")


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_a_line_that_nobody_reads_any_more_is_no_reason_not_to_serve(tmp_path):
    write_bundle(tmp_path / "tiny" / "1")
    port = free_port()
    command = [sys.executable, "-m", "service.cli", "--models", str(tmp_path), "--port", str(port)]
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        try:
            wait_until(lambda: is_ready(port))
        finally:
            process.kill()


def is_ready(port: int) -> bool:
    """Whether a service there is."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=LIMIT_S).status_code == 200
    except httpx.ConnectError:
        return False
