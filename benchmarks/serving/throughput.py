"""How fast the service answers, beside the raw session and other servers, in one run on one machine.

Everything gets the same encoder, the same threads and the same PNG files; wrk makes the load. The raw
session and the peers run the bundle's own graph, the service the faster ones that it derives from it; with
`--plain` it runs the bundle's own as well, and server is compared with server. Nothing else runs while one
of them is measured. On a noisy machine only neighbors compare: the raw session is measured anew before
every server, every round measures all servers, ratios are between neighbors or within a round, and the
tables show medians. That is why a ratio may differ from that of the two medians beside it.

    .venv/bin/pip install -e '.[bench]' && apt install wrk
    .venv/bin/python -m benchmarks.serving.throughput                            some 15 minutes
    .venv/bin/python -m benchmarks.serving.throughput --clients 8 --seconds 4    three
"""

import argparse
import json
import math
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from urllib.error import URLError
from urllib.request import Request, urlopen

from benchmarks import option_types
from benchmarks.machine import processor
from benchmarks.paths import ROOT
from benchmarks.serving.bodies import (
    posting_pictures,
    posting_tensors,
    samples,
    write_pictures,
    write_tensors,
    wrk,
)
from benchmarks.serving.one_version import models_with_only
from export.contract.manifest import read_manifest
from export.contract.processors import usable_cpus

PEERS = Path(__file__).resolve().parent / "peers"
SERVICE = "this service"
BINARY = "this service, binary tensors"
CLIENTS = (1, 8, 32, 128)
BINARY_IMAGES = 64  # in one request
BINARY_CLIENTS = 4
START_S = 60.0
WARM_S = 2

Result = dict[str, float]  # images_s, p50_ms, p99_ms, failed
Key = tuple[str, int]  # server, clients
Raw = dict[str, Result]  # by batch size


@dataclass(frozen=True)
class Load:
    """What every server is measured with.

    Attributes:
        clients: how many at the same time, one after the other.
        seconds: for each number of clients.
        pictures: PNG files.
        tensors: a body with binary tensors; its suffix is the length of its JSON.
    """

    clients: Sequence[int]
    seconds: int
    pictures: Sequence[Path]
    tensors: Path


@dataclass(frozen=True)
class Server:
    """What is measured; in `command`, `{port}` stands for a free one."""

    name: str
    package: str
    command: tuple[str, ...]
    path: str = "/classify"


SERVERS = (
    Server(SERVICE, "service", ("-m", "service.cli", "--port", "{port}")),
    Server(
        "mosec",
        "mosec",
        (str(PEERS / "mosec_server.py"), "--port", "{port}", "--address", "127.0.0.1"),
        "/inference",
    ),
    Server("LitServe", "litserve", (str(PEERS / "litserve_server.py"), "{port}")),
    Server("FastAPI handler", "fastapi", (str(PEERS / "fastapi_handler.py"), "{port}")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    facts = read_manifest(options.bundle).preprocessing
    if (facts.height, facts.width, facts.channels) != (28, 28, 1):
        parser.error(
            f"{options.bundle} takes images of {facts.height}x{facts.width}x{facts.channels}; the peers take "
            "those of MNIST"
        )
    if not shutil.which("wrk"):
        print("throughput.py: wrk makes the load and is not installed: apt install wrk", file=sys.stderr)
        return 2
    servers = [server for server in SERVERS if find_spec(server.package)]
    for missing in sorted({server.name for server in SERVERS} - {server.name for server in servers}):
        print(f"{missing} is left out: .venv/bin/pip install -e '.[bench]' installs it", file=sys.stderr)
    print(_heading(options))
    raws: list[dict[str, Raw]] = []
    rounds: list[dict[Key, Result]] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(options, models_with_only(options.bundle, Path(folder)))
        pixels = samples(options.bundle)
        pictures = write_pictures(pixels, Path(folder))
        tensors = write_tensors(pixels, BINARY_IMAGES, "FP32", Path(folder))
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            raws.append({})
            rounds.append({})
            for server in servers[number % len(servers) :] + servers[: number % len(servers)]:
                raws[-1][server.name] = measure_raw(options.seconds / 4, environment)
                load = Load(options.clients, options.seconds, pictures, tensors)
                rounds[-1].update(measure(server, load, environment))
    print("\n".join(report(raws, rounds)))
    return 0


def measure_raw(seconds: float, environment: dict[str, str]) -> Raw:
    """The raw session, by batch size; so many seconds for each."""
    command = [sys.executable, str(PEERS / "raw_session.py"), str(seconds)]
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: Raw = json.loads(made.stdout)
    return found


def measure(server: Server, load: Load, environment: dict[str, str]) -> dict[Key, Result]:
    """A server under clients that post one PNG each; this service with binary tensors, too."""
    found = {}
    with running(server, load.pictures[0], environment) as origin:
        for clients in load.clients:
            url = origin + server.path
            found[server.name, clients] = _load(url, clients, load.seconds, *posting_pictures(load.pictures))
        if server.name == SERVICE:
            url = f"{origin}/v2/models/{environment['CAPSNET_DEFAULT_MODEL']}/infer"
            result = _load(url, BINARY_CLIENTS, load.seconds, *posting_tensors(load.tensors))
            result["images_s"] *= BINARY_IMAGES
            found[BINARY, BINARY_CLIENTS] = result
    return found


@contextmanager
def running(server: Server, picture: Path, environment: dict[str, str]) -> Iterator[str]:
    """The server's origin, once it answers; it and its children are gone afterwards.

    Raises:
        RuntimeError: it does not start; with the end of what it said.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    origin = f"http://127.0.0.1:{port}"
    command = [sys.executable, *(part.format(port=port) for part in server.command)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=ROOT, start_new_session=True
        )
        try:
            _wait_until_it_answers(origin + server.path, picture.read_bytes(), process)
            yield origin
        except TimeoutError:
            log.seek(0)
            words = log.read()[-2000:].decode(errors="replace")
            raise RuntimeError(f"{server.name} does not answer; it said:\n{words}") from None
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def report(raws: Sequence[dict[str, Raw]], rounds: Sequence[dict[Key, Result]]) -> Iterator[str]:
    """The tables, line by line.

    Args:
        raws: of every round, by the name of the server that was measured next.
        rounds: what the servers did.
    """
    every_raw = [raw for one in raws for raw in one.values()]
    yield "| raw session, batch | images/s | p50 ms |\n| ---: | ---: | ---: |"
    for size in every_raw[0]:
        rate, p50 = (median(raw[size][key] for raw in every_raw) for key in ("images_s", "p50_ms"))
        yield f"| {size} | {rate:.0f} | {p50:.2f} |"
    best = max(every_raw[0], key=lambda size: median(raw[size]["images_s"] for raw in every_raw))
    yield f"\nRatios are to the raw session at batches of {best}, and to the best peer at as many clients.\n"
    yield "| server | clients | images/s | p50 ms | p99 ms | failed | of raw | of best peer |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    peers = {name for name, _ in rounds[0]} - {SERVICE, BINARY}
    for name, clients in sorted(rounds[0], key=lambda key: (key[1], key[0] != SERVICE, key[0])):
        found = [one[name, clients] for one in rounds]
        rate, p50, p99 = (median(one[key] for one in found) for key in ("images_s", "p50_ms", "p99_ms"))
        failed = sum(one["failed"] for one in found)
        of_raw = _of_raw(raws, rounds, best, (name, clients))
        of_peer = f"{_of_best_peer(rounds, clients, peers):.2f}" if name == SERVICE and peers else ""
        yield (
            f"| {name} | {clients} | {rate:.0f} | {p50:.1f} | {p99:.1f} | {failed:.0f} "
            f"| {of_raw:.2f} | {of_peer} |"
        )


def _of_raw(
    raws: Sequence[dict[str, Raw]], rounds: Sequence[dict[Key, Result]], best: str, key: Key
) -> float:
    """A server's images per second as a ratio to those of the raw session just before it."""
    server = SERVICE if key[0] == BINARY else key[0]
    return median(
        one[key]["images_s"] / raw[server][best]["images_s"] for one, raw in zip(rounds, raws, strict=True)
    )


def _of_best_peer(rounds: Sequence[dict[Key, Result]], clients: int, peers: set[str]) -> float:
    return median(
        one[SERVICE, clients]["images_s"]
        / (max(one[peer, clients]["images_s"] for peer in peers) or math.nan)
        for one in rounds
    )


def _load(url: str, clients: int, seconds: int, *arguments: str) -> Result:
    """What wrk measures, after a warm-up that does not count."""
    for length in (WARM_S, seconds):
        command = wrk(url, clients, length, arguments)
        made = subprocess.run(command, check=True, capture_output=True, text=True)
    return _result(json.loads(made.stdout.splitlines()[-1]))


def _result(found: dict[str, float]) -> Result:
    """Of what post.lua prints; only answers with 200 count as images. Times are those of all answers."""
    return {
        "images_s": (found["requests"] - found["refused"]) / found["seconds"],
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
        "failed": found["refused"] + found["errors"],
    }


def _wait_until_it_answers(url: str, png: bytes, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(Request(url, png, {"Content-Type": "image/png"}), timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError


def _environment(options: argparse.Namespace, models: Path) -> dict[str, str]:
    """Of every server and the raw session; pools of other libraries would only stand in the way."""
    ours = {
        "BENCH_BUNDLE": str(options.bundle),
        "BENCH_THREADS": str(options.threads),
        "CAPSNET_THREADS": str(options.threads),
        "CAPSNET_MODELS": str(models),
        "CAPSNET_DEFAULT_MODEL": options.bundle.parent.name,
        "CAPSNET_OPTIMIZE": "false" if options.plain else "true",
        "OMP_NUM_THREADS": "1",
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("CAPSNET_")} | ours


def _heading(options: argparse.Namespace) -> str:
    names = ("onnxruntime", "fastapi", "uvicorn", "mosec", "litserve")
    versions = ", ".join(f"{name} {version(name)}" for name in names if find_spec(name))
    graphs = "the bundle's own graph" if options.plain else "graphs derived from the bundle's"
    return (
        f"{processor()}, {options.threads} threads, Python {platform.python_version()}, {versions}; "
        f"{options.rounds} rounds of {options.seconds} s, "
        f"{options.bundle.parent.name}/{options.bundle.name}, of which the service runs {graphs}\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=option_types.positive, default=8, help="of each measurement (8)")
    parser.add_argument(
        "--clients",
        type=option_types.several,
        default=CLIENTS,
        metavar="N,...",
        help="at the same time (1,8,32,128)",
    )
    parser.add_argument("--rounds", type=option_types.positive, default=3, help="of measuring everything (3)")
    parser.add_argument(
        "--threads",
        type=option_types.positive,
        default=usable_cpus(),
        help="of the session (usable CPUs)",
    )
    parser.add_argument(
        "--bundle",
        type=option_types.bundle,
        default=str(ROOT / "models" / "capsnet-mnist"),
        help="a version of a model, or its folder, of which the newest (models/capsnet-mnist)",
    )
    parser.add_argument(
        "--plain", action="store_true", help="the service runs the bundle's own graph, none derived from it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
