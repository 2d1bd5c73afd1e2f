"""What several worker processes bring: requests a second and processor time by process, in one run.

    apt install wrk
    python -m benchmarks.serving.workers                       one, two and four workers, a minute
    python -m benchmarks.serving.workers --workers 1,2 --model models/capsnet-mnist
    python -m benchmarks.serving.workers --tensors 64          64 images in a request, as a binary tensor

The model is a tiny one that costs next to nothing, so that requests are all there is. One PNG in a request,
from 32 clients; with `--clients 1`, 1,000 divided by requests/s is the time of one request in ms. `--tensors`
posts so many images in a request to the Open Inference Protocol instead, as FP32 or UINT8. wrk makes
the load on the same processors, and its own time is shown, since it takes them away from the service. `ms` is
processor time for a request. The last column is what the service would answer on as many free processors as
its processes can fill, if nothing else grew: the lesser of 1,000 / ms of the engine process, and of the
workers times 1,000 / ms of one.
"""

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import option_types
from benchmarks.machine import cpu_seconds, stat
from benchmarks.serving.bodies import (
    DATATYPES,
    posting_pictures,
    posting_tensors,
    samples,
    write_tensors,
    wrk,
)
from benchmarks.serving.one_version import models_with_only
from tests.support.live_process import LiveProcess, live_process
from tests.support.tiny_bundle import write_bundle

CLIENTS = 32
COLUMNS = (
    *("workers", "requests/s", "images/s", "ms of a worker", "ms of the engine process", "ms of wrk"),
    *("MiB", "at most"),
)


@dataclass(frozen=True)
class Cost:
    """What a load has cost.

    Attributes:
        requests: answered with 200.
        seconds: that it lasted.
        workers_s: processor time of the processes for requests; of the only one, if it has the models.
        engine_s: processor time of the engine process.
        load_s: processor time of wrk.
        resident_mib: memory of all processes of the service at the end.
    """

    requests: int
    seconds: float
    workers_s: float
    engine_s: float
    load_s: float
    resident_mib: float


@dataclass(frozen=True)
class Posted:
    """What clients post.

    Attributes:
        path: where.
        route: its template, by which metrics count.
        arguments: of post.lua.
    """

    path: str
    route: str
    arguments: tuple[str, ...]


def main() -> None:
    """Measure and print the table."""
    options = parse()
    images = options.tensors or 1
    print("| " + " | ".join(COLUMNS) + " |\n" + "| ---: " * len(COLUMNS) + "|")
    for workers in options.workers:
        cost = measure(workers, options)
        try:
            print(line(workers, cost, images))
        except ValueError as error:
            sys.exit(f"workers: {error}")


def line(workers: int, cost: Cost, images: int) -> str:
    """Of the table.

    Args:
        workers: processes for requests.
        cost: what the load has cost.
        images: in a request.

    Raises:
        ValueError: no request was answered with 200.
    """
    if not cost.requests:
        raise ValueError("no request was answered with 200; a model of pairs needs --tensors")
    of_workers, of_engine, of_load = (
        1000 * each / cost.requests for each in (cost.workers_s, cost.engine_s, cost.load_s)
    )
    at_most = min(1000 * workers / of_workers, 1000 / of_engine if of_engine else float("inf"))
    rate = cost.requests / cost.seconds
    return (
        f"| {workers} | {rate:.0f} | {rate * images:.0f} | {of_workers:.2f} | {of_engine:.2f} "
        f"| {of_load:.2f} | {cost.resident_mib:.0f} | {at_most:.0f} |"
    )


def parse(arguments: Sequence[str] | None = None) -> Namespace:
    """The options."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--workers",
        type=option_types.several,
        default="1,2,4",
        metavar="N,...",
        help="numbers of workers (1,2,4)",
    )
    parser.add_argument("--clients", type=option_types.positive, default=CLIENTS, help=f"of wrk ({CLIENTS})")
    parser.add_argument("--seconds", type=option_types.positive, default=8, help="of each (8)")
    parser.add_argument(
        "--model",
        type=option_types.bundle,
        help="a version of a model, or its folder, in place of the tiny one",
    )
    parser.add_argument(
        "--tensors",
        type=option_types.positive,
        help="images of a binary tensor in a request, in place of a PNG",
    )
    parser.add_argument("--datatype", choices=sorted(DATATYPES), default="FP32", help="of the tensor (FP32)")
    return parser.parse_args(arguments)


def measure(workers: int, options: Namespace) -> Cost:
    """Put load on a service with so many workers."""
    seconds, clients = options.seconds, options.clients
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = options.model or write_bundle(folder / "tiny" / "1")
        posted = what_is_posted(bundle, options, folder)
        model = bundle.parent.name
        facts: dict[str, Any] = {"workers": workers, "default_model": model, "log_level": "warning"}
        with live_process(models_with_only(bundle, folder), folder / "log", **facts) as service:
            load(service, posted, 2, clients)  # warm
            before, so_far = processor_s(service), answered(service, posted)
            began_s = os.times().children_user + os.times().children_system
            load(service, posted, seconds, clients)
            after = processor_s(service)
            spent = {pid: after[pid] - before[pid] for pid in after}
            engine = engine_pid(service) if workers > 1 else None
            return Cost(
                requests=answered(service, posted) - so_far,
                seconds=seconds,
                workers_s=sum(each for pid, each in spent.items() if pid != engine),
                engine_s=spent[engine] if engine else 0.0,
                load_s=os.times().children_user + os.times().children_system - began_s,
                resident_mib=service.metric("process_resident_memory_bytes") / 2**20,
            )


def what_is_posted(bundle: Path, options: Namespace, folder: Path) -> Posted:
    """A PNG file, or a tensor of a bundle's samples; it is in the folder."""
    if options.tensors is None:
        picture = folder / "7.png"
        Image.fromarray(np.eye(28, dtype=np.uint8) * 255).save(picture)
        return Posted("/classify", "/classify", posting_pictures([picture]))
    tensors = write_tensors(samples(bundle), options.tensors, options.datatype, folder)
    path = f"/v2/models/{bundle.parent.name}/infer"
    return Posted(path, "/v2/models/{name}/infer", posting_tensors(tensors))


def load(service: LiveProcess, posted: Posted, seconds: int, clients: int) -> None:
    """Let clients post for so long."""
    url = f"{str(service.client.base_url).rstrip('/')}{posted.path}"
    command = wrk(url, clients, seconds, posted.arguments)
    subprocess.run(command, check=True, capture_output=True)


def answered(service: LiveProcess, posted: Posted) -> int:
    """Requests that were answered with 200 so far."""
    return int(service.metric("capsnet_requests_total", route=posted.route, status="200"))


def processor_s(service: LiveProcess) -> dict[int, float]:
    """Processor time of each process of the service."""
    main = service.running.pid
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    return {pid: cpu_seconds(pid) for pid in (main, *map(int, children))}


def engine_pid(service: LiveProcess) -> int:
    """The process that has the models: the first that the supervisor has started."""
    main = service.running.pid
    children = map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split())
    ours = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return min(ours, key=lambda pid: int(stat(pid)[19]))  # when it began


if __name__ == "__main__":
    main()
