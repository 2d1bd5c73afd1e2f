"""How long faults last: each is made on a running capsnet-serve, and the times are printed.

    python -m benchmarks.resilience.faults               all of them, about two and a half minutes

The service is a process of its own with the shipped capsnet-mnist and its default settings, but for the size
of its queue where that is full, the time for a body where bodies drip, and a model that can be made to raise
where that is shown. Requests are single pictures of 28x28, as PNG, from threads of this script,
on the same cores as the service. What is waited for is looked at every 10 ms, the version of a new bundle
every 100 ms. tests/service/test_faults.py asserts what must come out.
"""

import shutil
import socket
import tempfile
import threading
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sized
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks.machine import memory_bytes
from benchmarks.paths import ROOT
from export.contract.manifest import newest_version
from export.contract.pictures import FORMATS
from tests.support.decompression_bombs import BOMBS, saved
from tests.support.faulty_bundle import write_touchy_bundle
from tests.support.http_load import Load, under_load
from tests.support.live_process import KILLABLE, LiveProcess, live_process
from tests.support.live_service import wait_until
from tests.support.small_pictures import to_png
from tests.support.tiny_bundle import SIDE

BUNDLE = newest_version(ROOT / "models" / "capsnet-mnist")
COMPUTED = "capsnet_batch_images_sum"
CLIENTS = 8
STOP_CLIENTS = 32
LEAVING_CLIENTS = 200
FULL_QUEUE_CLIENTS = 40
FULL_QUEUE_IMAGES = 16
FULL_QUEUE_S = 3
RAISED_BATCHES = 20
ALONE = 100
DRIPPING_CLIENTS = 100
DRIP_S = 0.1
DRIPPING_MS = 5000
LOOK_S = 0.1
IDLE_PUBLICATIONS = 5
REPLACEMENTS = 20


class Row(NamedTuple):
    """A line of the table."""

    fault: str
    measured: str
    value: str


def main() -> None:
    """Make every fault and print the table as it grows."""
    faults: list[Callable[[Path], Iterator[Row]]] = [
        killed_thread,
        raising_session,
        published_bundle,
        replaced_bundle,
        broken_bundle,
        clients_that_leave,
        full_queue,
        dripping_uploads,
        image_bombs,
        stop_under_load,
    ]
    before = ""
    for fault in faults:
        with tempfile.TemporaryDirectory() as folder:
            publish(Path(folder) / "models", 1)
            for row in fault(Path(folder)):
                print(
                    f"{'' if row.fault == before else row.fault:38} {row.measured:58} {row.value}", flush=True
                )
                before = row.fault


def killed_thread(folder: Path) -> Iterator[Row]:
    """An inference thread ends in the middle of its work; then another process takes over."""
    fault = f"inference thread killed, {CLIENTS} clients"
    with (
        live_process(folder / "models", folder / "log", program=KILLABLE) as service,
        under_load(service.address, CLIENTS, picture()) as load,
    ):
        wait_until(lambda: len(load.of_status(200)) > 10 * CLIENTS)
        service.kill_inference_thread()
        yield Row(fault, "until /healthz was 503", until(lambda: status(service, "/healthz") == 503))
        yield Row(fault, "and until it had ended", until(lambda: service.running.poll() is not None))
    yield Row(fault, "requests answered 503", of_all(load.of_status(503), load))
    yield Row(fault, "requests without an answer", of_all(load.lost, load))
    began = time.monotonic()
    with live_process(folder / "models", folder / "log") as service:
        wait_until(lambda: status(service, "/readyz") == 200)
        yield Row(fault, "from the next start until /readyz was 200", ms(time.monotonic() - began))
        service.client.post("/classify", content=picture())
        yield Row(fault, "and until a picture was answered", ms(time.monotonic() - began))


def raising_session(folder: Path) -> Iterator[Row]:
    """A picture for which the session raises, and with it for its whole batch, among good ones."""
    fault = f"session that raises, {CLIENTS} clients"
    write_touchy_bundle(folder / "touchy" / "touchy" / "1")
    good, bad = (saved("PNG", Image.new("L", (SIDE, SIDE), level)) for level in (0, 255))
    spans: list[tuple[float, float]] = []
    with (
        live_process(folder / "touchy", folder / "log", threads=1, log_level="warning") as service,
        under_load(service.address, CLIENTS, good) as load,
    ):
        wait_until(lambda: len(load.of_status(200)) > 10 * CLIENTS)
        while len(spans) < RAISED_BATCHES:
            said, began = len(service.lines), time.monotonic()
            service.client.post("/classify", content=bad)
            ended = time.monotonic()
            time.sleep(LOOK_S)  # until the log is written
            if any("running them one by one" in line["message"] for line in service.lines[said:]):
                spans.append((began, ended))
    beside = [o for o in load.outcomes if any(o.began < end and o.ended > start for start, end in spans)]
    yield Row(fault, "answer beside one that raised, median", ms(median(o.ended - o.began for o in beside)))
    yield Row(fault, "answer beside one that raised, longest", ms(max(o.ended - o.began for o in beside)))
    yield Row(fault, "any answer, median", ms(median(o.ended - o.began for o in load.outcomes)))
    failed = [outcome for outcome in load.outcomes if outcome.status != 200]
    yield Row(fault, f"good requests that failed, {RAISED_BATCHES} batches raised", of_all(failed, load))


def published_bundle(folder: Path) -> Iterator[Row]:
    """A new version, on a service that has nothing else to do."""
    with live_process(folder / "models", folder / "log") as service:
        times = [publication(service, folder, 2 + number) for number in range(IDLE_PUBLICATIONS)]
    fault = f"bundle published {IDLE_PUBLICATIONS} times, idle"
    yield Row(fault, "until the version first answered, median", ms(median(times)))
    yield Row(fault, "until the version first answered, longest", ms(max(times)))


def replaced_bundle(folder: Path) -> Iterator[Row]:
    """New versions, one after another, on a busy service."""
    with (
        live_process(folder / "models", folder / "log") as service,
        under_load(service.address, CLIENTS, picture()) as load,
    ):
        times = [publication(service, folder, 2 + number) for number in range(REPLACEMENTS)]
    fault = f"bundle replaced {REPLACEMENTS} times, {CLIENTS} clients"
    failed = [outcome for outcome in load.outcomes if outcome.status != 200]
    yield Row(fault, "until the version first answered, median", ms(median(times)))
    yield Row(fault, "until the version first answered, longest", ms(max(times)))
    yield Row(fault, "slowest answer", ms(max(o.ended - o.began for o in load.of_status(200))))
    yield Row(fault, "requests that failed", of_all(failed, load))


def broken_bundle(folder: Path) -> Iterator[Row]:
    """A graph of which a byte is wrong, and is put right."""
    fault = "bundle with a wrong byte"
    content = bytearray((BUNDLE / "encoder.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    bundle = shutil.copytree(BUNDLE, folder / "aside" / "2")
    (bundle / "encoder.onnx").write_bytes(content)
    with live_process(folder / "models", folder / "log") as service:
        bundle = bundle.rename(folder / "models" / "capsnet-mnist" / "2")
        refused = until(lambda: service.metric("capsnet_model_refused", version="2") == 1)
        yield Row(fault, "from its publishing until /metrics said that it is refused", refused)
        shutil.copy(BUNDLE / "encoder.onnx", bundle)
        yield Row(
            fault, "from its mending until the version first answered", until(lambda: answers(service, 2))
        )


def clients_that_leave(folder: Path) -> Iterator[Row]:
    """Many clients send a picture and hang up."""
    fault = f"{LEAVING_CLIENTS} clients that hang up"
    head = f"POST /classify HTTP/1.1\r\nHost: benchmark\r\nContent-Length: {len(picture())}\r\n\r\n"
    with live_process(folder / "models", folder / "log") as service:
        answers(service, 1)
        descriptors = service.metric("process_open_fds")
        with ExitStack() as connected:
            connections = [socket.create_connection(service.address) for _ in range(LEAVING_CLIENTS)]
            for connection in connections:
                connected.enter_context(connection)
                connection.sendall(head.encode() + picture())
            wait_until(lambda: service.metric("capsnet_queue_images") > 0)
            computed = service.metric(COMPUTED)
        yield Row(
            fault, "of their images, computed at that moment", f"{computed - 1:.0f} of {LEAVING_CLIENTS}"
        )
        yield Row(fault, "until none waited", until(lambda: service.metric("capsnet_queue_images") == 0))
        yield Row(fault, "and until the next picture was answered", until(lambda: answers(service, 1)))
        wait_until(lambda: service.metric("process_open_fds") == descriptors)
        after = service.metric(COMPUTED) - 1 - computed
        yield Row(fault, "of their images, computed all the same after it", f"{after:.0f}")


def full_queue(folder: Path) -> Iterator[Row]:
    """Many more clients than the queue has room for, who try again at once."""
    fault = f"queue of {FULL_QUEUE_IMAGES} images, {FULL_QUEUE_CLIENTS} clients"
    names = ("queue_images", "max_images_per_request", "max_reconstructions")
    limits: dict[str, Any] = dict.fromkeys(names, FULL_QUEUE_IMAGES)
    with (
        live_process(folder / "models", folder / "log", **limits) as service,
        under_load(service.address, FULL_QUEUE_CLIENTS, picture()) as load,
    ):
        time.sleep(FULL_QUEUE_S)
    refusals = sorted(outcome.ended - outcome.began for outcome in load.of_status(503))
    yield Row(fault, "time of a 503, p50", ms(refusals[len(refusals) // 2]))
    yield Row(fault, "time of a 503, p99", ms(refusals[len(refusals) * 99 // 100]))
    yield Row(fault, "answered 200", of_all(load.of_status(200), load))
    yield Row(fault, "requests with neither", of_all(load.lost, load))


def dripping_uploads(folder: Path) -> Iterator[Row]:
    """Many clients send a byte of their body now and then."""
    fault = f"{DRIPPING_CLIENTS} uploads that drip"
    with live_process(folder / "models", folder / "log", receive_ms=DRIPPING_MS) as service:
        answers(service, 1)
        alone = [posted(service, picture())[1] for _ in range(ALONE)]
        beside: list[float] = []
        with dripping(service.address, DRIPPING_CLIENTS) as cut_off_after:
            while len(cut_off_after) < DRIPPING_CLIENTS:
                beside.append(posted(service, picture())[1])
    yield Row(fault, "time of a picture before them, median", ms(median(alone)))
    yield Row(fault, "time of a picture beside them, median", ms(median(beside)))
    yield Row(fault, "time of a picture beside them, longest", ms(max(beside)))
    yield Row(fault, f"until one was answered 408 (limit {DRIPPING_MS} ms), first", ms(min(cut_off_after)))
    yield Row(fault, f"until one was answered 408 (limit {DRIPPING_MS} ms), last", ms(max(cut_off_after)))


def image_bombs(folder: Path) -> Iterator[Row]:
    """Small files that would become large pictures, one after another."""
    fault = f"{len(BOMBS)} image bombs"
    files = {name: make() for name, make in BOMBS.items()}
    with live_process(folder / "models", folder / "log") as service:
        for image_format in FORMATS:
            posted(service, saved(image_format))  # loads what it needs
        before = memory_bytes(service.running.pid)["VmRSS"]
        Path(f"/proc/{service.running.pid}/clear_refs").write_text("5")  # the peak begins here
        refusals = {name: posted(service, file) for name, file in files.items()}
        peak = memory_bytes(service.running.pid)["VmHWM"]
    times = {name: seconds for name, (_, seconds) in refusals.items()}
    slowest = max(times, key=lambda name: times[name])
    refused = [status for status, _ in refusals.values() if status in (413, 422)]
    yield Row(fault, "refused", f"{len(refused)} of {len(BOMBS)}")
    yield Row(fault, "until all were refused", ms(sum(times.values())))
    yield Row(fault, f"slowest: {slowest}", ms(times[slowest]))
    yield Row(fault, "memory at its peak, above that before", f"{(peak - before) / 2**20:.1f} MiB")


def stop_under_load(folder: Path) -> Iterator[Row]:
    """SIGTERM while everybody posts."""
    fault = f"SIGTERM, {STOP_CLIENTS} clients"
    with (
        live_process(folder / "models", folder / "log") as service,
        under_load(service.address, STOP_CLIENTS, picture()) as load,
    ):
        wait_until(lambda: len(load.of_status(200)) > 5 * STOP_CLIENTS)
        asked = time.monotonic()
        service.stop()
        exit_status = service.running.wait()
        ended = time.monotonic()
    yield Row(fault, "until the process had ended", ms(ended - asked))
    yield Row(fault, "exit status", str(exit_status))
    yield Row(fault, "requests answered after the signal", str(sum(o.ended > asked for o in load.outcomes)))
    yield Row(fault, "requests without an answer", of_all(load.lost, load))


def publish(models: Path, version: int) -> None:
    """The shipped bundle as another version, whole at once."""
    folder = models / "capsnet-mnist"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(BUNDLE, folder / f".{version}").rename(folder / str(version))


def publication(service: LiveProcess, folder: Path, version: int) -> float:
    """Seconds from the publishing of a version until it answers."""
    publish(folder / "models", version)
    began = time.monotonic()
    while not answers(service, version):
        time.sleep(LOOK_S)
    seconds = time.monotonic() - began
    shutil.rmtree(folder / "models" / "capsnet-mnist" / str(version - 2), ignore_errors=True)  # not kept
    return seconds


def answers(service: LiveProcess, version: int) -> bool:
    """Whether that version answers a picture for which no version is named."""
    answer = service.client.post("/classify", content=picture())
    return answer.status_code == 200 and answer.json()["version"] == version


def posted(service: LiveProcess, content: bytes) -> tuple[int, float]:
    """The status of the answer to a picture, and the seconds it took."""
    began = time.monotonic()
    answer = service.client.post("/classify", content=content)
    return answer.status_code, time.monotonic() - began


@contextmanager
def dripping(address: tuple[str, int], clients: int) -> Iterator[list[float]]:
    """Uploads that drip until they are answered; yields the seconds that each has lasted, once it is over."""
    lasted: list[float] = []
    threads = [threading.Thread(target=drip, args=[address, lasted]) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield lasted
    finally:
        for thread in threads:
            thread.join()


def drip(address: tuple[str, int], lasted: list[float]) -> None:
    """Send a byte, wait for an answer, send the next; until the answer, which must be 408."""
    began = time.monotonic()
    answer = b""
    with socket.create_connection(address, timeout=DRIP_S) as connection:
        connection.sendall(b"POST /classify HTTP/1.1\r\nHost: benchmark\r\nContent-Length: 1000000\r\n\r\n")
        while not answer:
            connection.sendall(b".")
            with suppress(TimeoutError):
                answer = connection.recv(2**16)
    lasted.append(time.monotonic() - began)
    assert answer.startswith(b"HTTP/1.1 408 "), answer


def status(service: LiveProcess, path: str) -> int:
    """Of what the service answers there."""
    return service.client.get(path).status_code


def until(condition: Callable[[], bool]) -> str:
    """How long it takes from now on."""
    began = time.monotonic()
    wait_until(condition)
    return ms(time.monotonic() - began)


def ms(seconds: float) -> str:
    """As the table shows it."""
    return f"{seconds * 1000:.1f} ms"


def of_all(some: Sized, load: Load) -> str:
    """As the table shows it."""
    return f"{len(some)} of {len(load.outcomes)}"


@cache
def picture() -> bytes:
    """The first of the bundle's samples as a PNG file."""
    with np.load(BUNDLE / "samples.npz") as samples:
        pixels = samples["pixels"][0, :, :, 0]  # [H, W] in 0-1
    return to_png((pixels * 255).round().astype(np.uint8))


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
