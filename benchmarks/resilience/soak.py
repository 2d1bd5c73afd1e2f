"""A service at full load for ten minutes must not grow: not its memory, its threads or its open files.

`capsnet-serve` with the bundles in models/ runs as a process of its own. wrk keeps it saturated with single
pictures, and `soak_traffic` sends a few requests a second of every other kind, bad ones and clients that hang
up among them. Settings of the service (CAPSNET_*) apply.

    python -m benchmarks.resilience.soak                 ten minutes
    python -m benchmarks.resilience.soak --minutes 60    an hour

Exit status: 0 it held; 1 resident memory grew by more than 5 % after the first minute, threads or open files
became more, a request got no answer or a 5xx other than 503, or the service ended; 2 it cannot run here.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.machine import memory_bytes
from benchmarks.paths import ROOT
from benchmarks.resilience.soak_traffic import Traffic
from benchmarks.serving.bodies import posting_pictures, samples, write_pictures, wrk
from export.contract.manifest import newest_version
from tests.support.live_process import LiveProcess, live_process
from tests.support.live_service import metric

BUNDLE = newest_version(ROOT / "models" / "capsnet-mnist")

CONNECTIONS = 32
LARGEST_GROWTH = 0.05
START_S = 60  # memory may grow until then
WINDOW_S = 10  # memory goes up and down with what is under way; the median of so many samples does not
MIN_MINUTES = 1.5
SETTLE_S = 3  # for connections to be closed
STOP_S = 60
COMPLAINTS = 20
PREFIX = "CAPSNET_"
OURS = ("models", "host", "port", "metrics_port")
MIB = 2**20


class CannotRunError(Exception):
    """Something that the soak needs is not there: says what, and how to get it."""


class ServiceEndedError(Exception):
    """The service has ended in the middle of the load."""


class Sample(NamedTuple):
    """What a process holds at a moment."""

    memory_bytes: int
    threads: int
    descriptors: int


class Held(NamedTuple):
    """What the service held.

    Attributes:
        before: at rest, when every kind of request had been answered once.
        minute: in the last seconds of the first minute, medians.
        end: in the last seconds of the load, medians.
        after: at rest again.
    """

    before: Sample
    minute: Sample
    end: Sample
    after: Sample

    @property
    def growth(self) -> float:
        """Of memory under load, as a share."""
        return self.end.memory_bytes / self.minute.memory_bytes - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; returns the exit status."""
    parser = argparse.ArgumentParser(description="Keep a service saturated and watch what it holds.")
    parser.add_argument("--minutes", type=float, default=10, help="how long, at least 1.5 (10)")
    minutes = parser.parse_args(arguments).minutes
    if not minutes >= MIN_MINUTES:
        parser.error(
            f"--minutes must be at least {MIN_MINUTES}, as the first counts as the start; got {minutes}"
        )
    try:
        return soak(60 * minutes)
    except CannotRunError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2


def soak(seconds: float) -> int:
    """Load the service for so long, tell what came of it, and return the exit status.

    Raises:
        CannotRunError: there is no wrk or no /proc, or the service does not start.
    """
    if not Path("/proc/self/fd").exists():
        raise CannotRunError("what a process holds is read from /proc, which only Linux has")
    if not shutil.which("wrk"):
        raise CannotRunError("wrk makes the load and is not installed: apt install wrk")
    pixels = samples(BUNDLE)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        try:
            service = running.enter_context(live_process(ROOT / "models", Path(folder) / "log", **settings()))
        except AssertionError as error:
            raise CannotRunError(error) from None
        url = str(service.client.base_url).rstrip("/")
        posted = posting_pictures(write_pictures(pixels, Path(folder)))
        command = wrk(f"{url}/classify", CONNECTIONS, round(seconds), posted)
        try:
            held, statuses = load(service, Traffic(url, pixels, ROOT / "docs"), command)
        except ServiceEndedError as error:
            faults = [str(error)]
        else:
            report(held, statuses, seconds)
            faults = growth(held) + bad_statuses(statuses) + end(service)
        print(f"FAILED: {'; '.join(faults)}" if faults else "held", flush=True)
        if faults:
            sys.stderr.writelines(complaints(service.log))
    return 1 if faults else 0


def settings() -> dict[str, Any]:
    """Of the service, from the environment, but for its models and where it listens."""
    names = [name for name in os.environ if name.startswith(PREFIX)]
    given = {name.removeprefix(PREFIX).lower(): os.environ[name] for name in names}
    return {"device": "auto"} | {name: given[name] for name in given if name not in OURS}


# -- the service ------------------------------------------------------------------------------------------


def sample(service: LiveProcess) -> Sample:
    """What it holds now.

    Raises:
        ServiceEndedError: it is not there any more.
    """
    if (status := service.running.poll()) is not None:
        raise ServiceEndedError(f"the service ended under load with status {status}")
    pid = service.running.pid
    threads, descriptors = (len(list(Path(f"/proc/{pid}/{name}").iterdir())) for name in ("task", "fd"))
    return Sample(memory_bytes(pid)["VmRSS"], threads, descriptors)


def answered(service: LiveProcess) -> float:
    """Requests that it says it has answered."""
    with httpx.Client(base_url=service.client.base_url) as client:  # whose connection does not stay open
        return metric(client, "capsnet_requests_total")


def end(service: LiveProcess) -> list[str]:
    """Ask it to end; what is wrong with how it does."""
    service.stop()
    try:
        status = service.running.wait(STOP_S)
    except subprocess.TimeoutExpired:
        return [f"the service was asked to end and had not {STOP_S} s later"]
    return [f"the service was asked to end and did so with status {status}"] if status else []


def complaints(log: Path) -> deque[str]:
    """The last lines of a log that are no plain requests."""
    with log.open() as lines:
        return deque((line for line in lines if '"level":"info"' not in line), maxlen=COMPLAINTS)


# -- the load ---------------------------------------------------------------------------------------------


def load(service: LiveProcess, traffic: Traffic, command: list[str]) -> tuple[Held, Counter[str]]:
    """Put the service under load; what it held, and how often each status came.

    Raises:
        ServiceEndedError: it has not survived.
        CannotRunError: wrk has not put it under load.
    """
    traffic.once()
    time.sleep(SETTLE_S)
    before = sample(service)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as posting, traffic:
        try:
            under_load = watch(service, posting)
        finally:
            posting.terminate()
        output = posting.communicate()[0]
    if len(under_load) <= START_S:
        raise CannotRunError(f"wrk ended after {len(under_load)} s: {output.strip()}")
    time.sleep(SETTLE_S)
    minute, latest = medians(under_load[START_S - WINDOW_S : START_S]), medians(under_load[-WINDOW_S:])
    return Held(before, minute, latest, sample(service)), traffic.statuses + statuses_in(output)


def watch(service: LiveProcess, posting: subprocess.Popen[str]) -> list[Sample]:
    """A sample every second for as long as wrk runs; says how it is going once a minute.

    Raises:
        ServiceEndedError: it has not survived.
    """
    under_load: list[Sample] = []
    so_far = answered(service)
    while True:
        try:
            posting.wait(1)
        except subprocess.TimeoutExpired:
            under_load.append(sample(service))
        else:
            return under_load
        if len(under_load) % 60 == 0:
            before, so_far = so_far, answered(service)
            rate = f"{(so_far - before) / 60:7,.1f} requests/s"
            print(f"{len(under_load) // 60:3} min  {rate}  {shown(under_load[-1])}", flush=True)


def medians(window: Sequence[Sample]) -> Sample:
    """What was held most of the time."""
    return Sample(*(round(median(values)) for values in zip(*window, strict=True)))


def statuses_in(output: str) -> Counter[str]:
    """Of what post.lua prints: how often each status came, and that none did."""
    found = json.loads(output.splitlines()[-1])
    return Counter(found["statuses"]) + Counter({"no answer": found["errors"]})


# -- what came of it --------------------------------------------------------------------------------------


def growth(held: Held) -> list[str]:
    """What has become more than it may."""
    faults = []
    if held.growth > LARGEST_GROWTH:
        faults.append(f"resident memory grew by {held.growth:.1%}, {LARGEST_GROWTH:.0%} are allowed")
    # asyncio's pool may have so many threads, but starts another one only when two of its jobs meet.
    pool = (os.cpu_count() or 1) + 4
    if held.end.threads > held.minute.threads + pool:
        faults.append(f"threads grew from {held.minute.threads} to {held.end.threads}")
    if held.after.descriptors > held.before.descriptors:
        faults.append(f"open files grew from {held.before.descriptors} to {held.after.descriptors}")
    return faults


def bad_statuses(statuses: Counter[str]) -> list[str]:
    """Statuses that must not come, and errors in place of one."""
    bad = [one for one in statuses if not one.isdecimal() or (int(one) >= 500 and one != "503")]
    return [f"{statuses[one]} times {one}" for one in sorted(bad)]


def report(held: Held, statuses: Counter[str], seconds: float) -> None:
    """Print what came of it."""
    answered = sum(count for status, count in statuses.items() if status.isdecimal())
    counted = "  ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items()))
    print(f"\n{answered:,} requests answered, {answered / seconds:,.1f} a second ({counted})")
    print(f"before the load         {shown(held.before)}")
    print(f"after the first minute  {shown(held.minute)}")
    print(f"at the end              {shown(held.end)}")
    print(f"after the load          {shown(held.after)}")
    print(f"growth of memory        {held.growth:+.1%}, at most {LARGEST_GROWTH:+.0%}")


def shown(sample: Sample) -> str:
    """A sample in words."""
    memory = f"{sample.memory_bytes / MIB:6.1f} MiB"
    return f"{memory}  {sample.threads:3} threads  {sample.descriptors:3} open files"


if __name__ == "__main__":
    sys.exit(main())
