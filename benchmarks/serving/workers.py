"""What several worker processes bring: requests a second and processor time by process, in one run.

    apt install wrk
    python -m benchmarks.serving.workers                       one, two and four workers, a minute
    python -m benchmarks.serving.workers --workers 1,2 --model models/capsnet-mnist

The model is a tiny one that costs next to nothing, so that requests are all there is. One PNG in a request,
from 32 clients; with `--clients 1`, 1,000 divided by requests/s is the time of one request in ms. wrk makes
the load on the same processors, and its own time is shown, since it takes them away from the service. `ms` is
processor time for a request. The last column is what the service would answer on as many free processors as
its processes can fill, if nothing else grew: the lesser of 1,000 / ms of the engine process, and of the
workers times 1,000 / ms of one.
"""

import os
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.serving.throughput import HERE
from tests.support.live_process import LiveProcess, live_process
from tests.support.tiny_bundle import write_bundle

CLIENTS = 32
TICKS = os.sysconf("SC_CLK_TCK")


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


def main() -> None:
    """Measure and print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers (1,2,4)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help=f"of wrk ({CLIENTS})")
    parser.add_argument("--seconds", type=int, default=8, help="of each (8)")
    parser.add_argument("--model", type=Path, help="folder of a model in place of the tiny one")
    options = parser.parse_args()
    print("| workers | requests/s | ms of a worker | ms of the engine process | ms of wrk | MiB | at most |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for workers in map(int, options.workers.split(",")):
        cost = measure(workers, options)
        of_workers, of_engine, of_load = (
            1000 * each / cost.requests for each in (cost.workers_s, cost.engine_s, cost.load_s)
        )
        at_most = min(1000 * workers / of_workers, 1000 / of_engine if of_engine else float("inf"))
        print(
            f"| {workers} | {cost.requests / cost.seconds:.0f} | {of_workers:.2f} | {of_engine:.2f} "
            f"| {of_load:.2f} | {cost.resident_mib:.0f} | {at_most:.0f} |"
        )


def measure(workers: int, options: Namespace) -> Cost:
    """Put load on a service with so many workers."""
    seconds, model = options.seconds, options.model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if model is None:
            write_bundle(folder / "models" / "tiny" / "1")
        picture = folder / "7.png"
        Image.fromarray(np.eye(28, dtype=np.uint8) * 255).save(picture)
        models = model.resolve().parent if model else folder / "models"
        facts = {"workers": workers, "default_model": model.name if model else "tiny", "log_level": "warning"}
        with live_process(models, folder / "log", **facts) as service:
            load(service, picture, 2, options.clients)  # warm
            before, answered = processor_s(service), requests(service)
            began_s = os.times().children_user + os.times().children_system
            load(service, picture, seconds, options.clients)
            after = processor_s(service)
            spent = {pid: after[pid] - before[pid] for pid in after}
            engine = engine_pid(service) if workers > 1 else None
            return Cost(
                requests=requests(service) - answered,
                seconds=seconds,
                workers_s=sum(each for pid, each in spent.items() if pid != engine),
                engine_s=spent[engine] if engine else 0.0,
                load_s=os.times().children_user + os.times().children_system - began_s,
                resident_mib=service.metric("process_resident_memory_bytes") / 2**20,
            )


def load(service: LiveProcess, picture: Path, seconds: int, clients: int) -> None:
    """Let clients post the picture for so long."""
    command = [
        "wrk",
        "-t1",
        f"-c{clients}",
        f"-d{seconds}s",
        "--timeout",
        "30s",
        "-s",
        str(HERE / "post.lua"),
    ]
    command += [f"{service.client.base_url}/classify", "--", "image/png", str(picture)]
    subprocess.run(command, check=True, capture_output=True)


def requests(service: LiveProcess) -> int:
    """Answered with 200 so far."""
    return int(service.metric("capsnet_requests_total", route="/classify", status="200"))


def processor_s(service: LiveProcess) -> dict[int, float]:
    """Processor time of each process of the service."""
    main = service.running.pid
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    return {pid: _ticks(pid) / TICKS for pid in (main, *map(int, children))}


def engine_pid(service: LiveProcess) -> int:
    """The process that has the models: the child with the most memory."""
    main = service.running.pid
    children = map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split())
    return max(children, key=lambda pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]))


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    main()
