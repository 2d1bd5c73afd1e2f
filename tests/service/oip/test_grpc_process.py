"""capsnet-serve with a gRPC port, in a process of its own: its start, its end, and faults under load."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as oip

from service.oip.grpc_calls import ON_THE_WAY_S
from tests.support.faulty_bundle import write_slow_bundle
from tests.support.live_process import KILLABLE, LiveProcess, live_process
from tests.support.live_service import wait_until
from tests.support.live_workers import pids
from tests.support.tiny_bundle import SIDE, write_bundle

OWN = [("grpc.use_local_subchannel_pool", 1)]  # each channel has a connection of its own
INFER = "/inference.GRPCInferenceService/ModelInfer"
WITHOUT_EXTRA = (
    "import sys; sys.modules[{module!r}] = None; from service.cli import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    Attributes:
        pause: seconds between the answer to the client's call before it and this call; endless for its first.
    """

    code: grpc.StatusCode
    text: str = ""
    pause: float = float("inf")


def message(model: str, images: int = 1) -> bytes:
    """A good request."""
    array = np.zeros((images, SIDE, SIDE, 1), np.float32)
    asked = oip.ModelInferRequest(model_name=model, raw_input_contents=[array.tobytes()])
    asked.inputs.add(name="pixels", datatype="FP32", shape=array.shape)
    return asked.SerializeToString()


@contextmanager
def load(service: LiveProcess, content: bytes, clients: int) -> Iterator[list[Outcome]]:
    """Clients that call without a pause, each on a connection of its own, until one of their calls fails."""
    outcomes: list[Outcome] = []
    over = threading.Event()

    def call_on() -> None:
        with grpc.insecure_channel(service.grpc_address, OWN) as channel:
            infer = channel.unary_unary(INFER)
            ended = float("-inf")
            while not over.is_set():
                pause = time.monotonic() - ended
                try:
                    infer(content, timeout=60)
                    outcomes.append(Outcome(grpc.StatusCode.OK, pause=pause))
                except grpc.RpcError as error:
                    outcomes.append(Outcome(error.code(), error.details(), pause))
                    if "connect" in error.details():  # nobody listens any more
                        return
                ended = time.monotonic()

    threads = [threading.Thread(target=call_on) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_calls_beside_a_frozen_engine_process_say_that_nothing_is_ready(tmp_path):
    write_bundle(tmp_path / "models" / "tiny" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", grpc_port=0, workers=2) as service:
        wait_until(lambda: len(pids(service, "the engine process")) == 1)
        [frozen] = pids(service, "the engine process")
        with triton.InferenceServerClient(service.grpc_address) as client:
            os.kill(frozen, signal.SIGSTOP)
            assert client.is_server_live()
            assert not client.is_server_ready()
            assert not client.is_model_ready("tiny")
            os.kill(frozen, signal.SIGCONT)
            wait_until(lambda: client.is_server_ready() and client.is_model_ready("tiny"))


def answered(outcomes: list[Outcome]) -> int:
    return sum(outcome.code == grpc.StatusCode.OK for outcome in outcomes)


@pytest.mark.parametrize(("write", "workers"), [(write_bundle, 1), (write_slow_bundle, 1), (write_bundle, 2)])
def test_no_call_is_lost_when_the_service_ends_under_load(tmp_path, write, workers):
    write(tmp_path / "models" / "one" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", grpc_port=0, workers=workers) as service:
        with load(service, message("one"), clients=8) as outcomes:
            wait_until(lambda: answered(outcomes) > 20)
            service.stop()
            assert service.running.wait(60) == 0
        failed = [outcome for outcome in outcomes if outcome.code != grpc.StatusCode.OK]
        prompt = [outcome for outcome in failed if outcome.pause < ON_THE_WAY_S - 0.1]
        assert [outcome for outcome in prompt if "Failed to connect" not in outcome.text] == []
        statuses = {line["status"] for line in service.lines if line.get("path") == INFER}
        assert statuses == {200}


def test_a_call_in_flight_is_answered_and_no_new_one_taken(tmp_path):
    write_slow_bundle(tmp_path / "models" / "slow" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", grpc_port=0, threads=1) as service:
        with grpc.insecure_channel(service.grpc_address) as channel:
            call = channel.unary_unary(INFER).future(message("slow", images=100))
            wait_until(lambda: service.metric("capsnet_queue_images") > 0)
            service.stop()
            assert len(oip.ModelInferResponse.FromString(call.result()).outputs) == 2
        assert service.running.wait(60) == 0


def test_a_call_that_takes_too_long_does_not_hold_the_end_up(tmp_path):
    write_bundle(tmp_path / "models" / "one" / "1")
    over = threading.Event()
    with (
        live_process(tmp_path / "models", tmp_path / "log", grpc_port=0, deadline_ms=1000) as service,
        grpc.insecure_channel(service.grpc_address) as channel,
    ):
        call = channel.stream_unary(INFER).future(iter(over.wait, True))  # never sends its message
        time.sleep(0.5)
        service.stop()
        assert service.running.wait(30) == 0
        with pytest.raises(grpc.RpcError):
            call.result()
        over.set()


def test_calls_of_a_dead_inference_thread_are_told_so(tmp_path):
    write_slow_bundle(tmp_path / "models" / "slow" / "1")
    settings = {"grpc_port": 0, "threads": 1}
    with (
        live_process(tmp_path / "models", tmp_path / "log", program=KILLABLE, **settings) as service,
        load(service, message("slow"), clients=4) as outcomes,
    ):
        wait_until(lambda: answered(outcomes) > 4)
        service.kill_inference_thread()
        assert service.running.wait(60) == 1
    assert {outcome.code for outcome in outcomes if "died" in outcome.text} == {grpc.StatusCode.UNAVAILABLE}


def test_a_client_of_triton_finds_it_where_the_service_says(tmp_path):
    write_bundle(tmp_path / "models" / "one" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", grpc_port=0) as service:
        assert service.grpc_address.startswith("127.0.0.1:")
        with triton.InferenceServerClient(service.grpc_address) as client:
            assert client.is_model_ready("one")


def test_workers_share_the_port_and_answer_for_the_service(tmp_path):
    write_bundle(tmp_path / "models" / "one" / "1")
    with live_process(tmp_path / "models", tmp_path / "log", grpc_port=0, workers=2) as service:
        for _ in range(16):  # the system gives each connection to one of the workers
            with triton.InferenceServerClient(service.grpc_address, channel_args=OWN) as client:
                assert client.is_server_ready()
                pixels = triton.InferInput("pixels", [1, SIDE, SIDE, 1], "FP32")
                pixels.set_data_from_numpy(np.zeros((1, SIDE, SIDE, 1), np.float32))
                assert client.infer("one", [pixels]).as_numpy("poses") is not None
                assert client.get_model_config("one").config.dynamic_batching.preferred_batch_size == [32]
        with triton.InferenceServerClient(service.grpc_address) as client:
            wait_until(lambda: client.get_inference_statistics("one").model_stats[0].inference_count == 16)
        assert service.metric("capsnet_requests_total", route=INFER, status="200") == 16
        assert sys.platform != "linux" or listeners(service.grpc_address) == 2


def listeners(address: str) -> int:
    """Sockets of this machine that listen on the port of an IPv4 address."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return sum(local.endswith(port) and state == "0A" for _, local, _, state, *_ in lines)


def run(models: Path, *arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    program = ["-c", code] if code else ["-m", "service.cli"]
    command = [sys.executable, *program, "--models", str(models), "--port", "0", "--device", "cpu"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)


def test_a_port_that_is_taken_is_one_line(tmp_path):
    write_bundle(tmp_path / "one" / "1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path, "--grpc-port", port)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"capsnet-serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("module", ["grpc", "tritonclient"])
def test_without_the_extra_the_start_fails_with_a_line_that_names_it(tmp_path, module):
    done = run(tmp_path, "--grpc-port", "0", code=WITHOUT_EXTRA.format(module=module))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"capsnet-serve: CAPSNET_GRPC_PORT needs {module}: pip install -e '.[grpc]'\n"


def test_without_the_extra_a_service_without_the_port_starts(tmp_path):
    without = "import sys; sys.modules['grpc'] = sys.modules['tritonclient'] = None"
    code = f"{without}; import service.app, service.serve"
    subprocess.run([sys.executable, "-c", code], check=True)
