"""A service at full load for ten minutes must not grow: not its memory, its threads or its open files.

`capsnet-serve` with the bundles in models/ runs as a process of its own. A compiled load generator, wrk or
oha, keeps it saturated with single pictures, and `soak_traffic` sends a few requests a second of every other
kind, bad ones and clients that hang up among them. Settings of the service (CAPSNET_*) apply.

    python -m benchmarks.resilience.soak                 ten minutes
    python -m benchmarks.resilience.soak --minutes 60    an hour

Exit status: 0 it held; 1 resident memory grew by more than 5 % after the first minute, threads or open files
became more, a request got no answer or a 5xx other than 503, or the service ended; 2 it cannot run here.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import numpy as np

from benchmarks.paths import ROOT
from benchmarks.resilience.soak_traffic import Floats, Traffic
from export.contract.manifest import newest_version
from service.http.png import to_png

SAMPLES = newest_version(ROOT / "models" / "capsnet-mnist") / "samples.npz"
SCRIPT = Path(__file__).with_suffix(".lua")

CONNECTIONS = 32
LARGEST_GROWTH = 0.05
WINDOW_S = 10  # memory goes up and down with what is under way; the median of so many samples does not
SETTLE_S = 3  # for connections to be closed
STOP_S = 60
MIB = 2**20
STATUS_LINE = re.compile(r"^ +\[(\d+)\] (\d+) responses$", re.MULTILINE)
ERROR_LINE = re.compile(r"^ +\[(\d+)\] (?!\d+ responses$)(.+)$", re.MULTILINE)
AT_THE_END = "deadline"  # oha's errors of requests that were under way when the time was over


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
    parser.add_argument("--minutes", type=float, default=10, help="how long, more than 1 (10)")
    minutes = parser.parse_args(arguments).minutes
    if not minutes > 1:
        parser.error(f"--minutes must be more than 1, the minute that counts as the start; got {minutes}")
    try:
        return soak(60 * minutes)
    except CannotRunError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2


def soak(seconds: float) -> int:
    """Load the service for so long, tell what came of it, and return the exit status.

    Raises:
        CannotRunError: there is no load generator, no /proc or no service.
    """
    if not Path("/proc/self/fd").exists():
        raise CannotRunError("what a process holds is read from /proc, which only Linux has")
    program = load_generator()
    pixels: Floats = np.load(SAMPLES)["pixels"]
    with tempfile.TemporaryDirectory() as folder:
        pictures = [Path(folder, f"{n}.png") for n in range(len(pixels))]
        for path, picture in zip(pictures, pixels, strict=True):
            path.write_bytes(to_png(picture))
        with running_service() as service:
            command = posting(program, f"{service.url}/classify", pictures, seconds)
            traffic = Traffic(service.url, pixels, ROOT / "docs")
            try:
                held, statuses = load(service, traffic, command)
            except ServiceEndedError as error:
                return failed([str(error)], service)
    report(held, statuses, seconds)
    faults = growth(held) + bad_statuses(statuses)
    if service.status:
        faults.append(f"the service was asked to end and did so with status {service.status}")
    if faults:
        return failed(faults, service)
    print("held")
    return 0


def failed(faults: Sequence[str], service: "RunningService") -> int:
    """Tell what is wrong, and what the service complained about last; the exit status."""
    print(f"FAILED: {'; '.join(faults)}", flush=True)
    sys.stderr.writelines(service.complaints)
    return 1


def load_generator() -> str:
    """The path of wrk or oha.

    Raises:
        CannotRunError: neither is installed.
    """
    program = shutil.which("wrk") or shutil.which("oha")
    if program is None:
        raise CannotRunError("needs a compiled load generator: apt install wrk (or install oha)")
    return program


def posting(program: str, url: str, pictures: Sequence[Path], seconds: float) -> list[str]:
    """The command that keeps posting pictures to the URL for so long."""
    connections, duration = str(CONNECTIONS), f"{round(seconds)}s"
    if Path(program).name == "wrk":
        options = ["--threads", "1", "--connections", connections, "--duration", duration, "--timeout", "60s"]
        return [program, *options, "--script", str(SCRIPT), url, "--", *map(str, pictures)]
    options = ["--no-tui", "-c", connections, "-z", duration, "-m", "POST", "-T", "image/png"]
    return [program, *options, "-D", str(pictures[0]), url]


# -- the service ------------------------------------------------------------------------------------------


@dataclass
class RunningService:
    """A process of `capsnet-serve`.

    Attributes:
        url: where it answers.
        complaints: its last log lines that are no plain requests.
        status: with which it ended; 0 when asked to end, None before.
    """

    process: subprocess.Popen[str]
    url: str
    complaints: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    status: int | None = None

    def sample(self) -> Sample:
        """What it holds now.

        Raises:
            ServiceEndedError: it is not there any more.
        """
        if (status := self.process.poll()) is not None:
            raise ServiceEndedError(f"the service ended under load with status {status}")
        folder = Path("/proc", str(self.process.pid))
        lines = (folder / "status").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        descriptors = len(os.listdir(folder / "fd"))  # noqa: PTH208  # names alone, no path for each
        return Sample(1024 * int(facts["VmRSS"].split()[0]), int(facts["Threads"]), descriptors)

    def answered(self) -> float:
        """Requests that it says it has answered."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("capsnet_requests_total"))

    def read_log(self) -> None:
        """Keep what it complains about until it ends; the pipe would fill otherwise."""
        assert self.process.stderr is not None, "the service was started without a pipe"
        for line in self.process.stderr:
            if '"level":"info"' not in line:
                self.complaints.append(line)


@contextmanager
def running_service() -> Iterator[RunningService]:
    """The service on a free port, ready; asked to stop at the end.

    Raises:
        CannotRunError: it does not start.
    """
    command: list[str | Path] = [Path(sys.executable).with_name("capsnet-serve")]
    command += ["--models", ROOT / "models", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None, "the service was started without a pipe"
    where = re.search(r"http://\S+", process.stdout.readline())
    if not where:
        raise CannotRunError(f"the service does not start: {process.communicate()[1].strip()}")
    service = RunningService(process, where.group())
    reading = threading.Thread(target=service.read_log)
    reading.start()
    try:
        yield service
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            service.status = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            service.status = process.wait()
        reading.join()


# -- the load ---------------------------------------------------------------------------------------------


def load(service: RunningService, traffic: Traffic, command: list[str]) -> tuple[Held, Counter[str]]:
    """Put the service under load; what it held, and how often each status came.

    Raises:
        ServiceEndedError: it has not survived.
        CannotRunError: the load generator has not put it under load.
    """
    traffic.once()
    time.sleep(SETTLE_S)
    before = service.sample()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as generating, traffic:
        try:
            under_load = watch(service, generating)
        finally:
            generating.terminate()
        output = generating.communicate()[0]
    if len(under_load) <= 60:
        raise CannotRunError(f"{command[0]} ended after {len(under_load)} s: {output.strip()}")
    time.sleep(SETTLE_S)
    minute, end = medians(under_load[60 - WINDOW_S : 60]), medians(under_load[-WINDOW_S:])
    return Held(before, minute, end, service.sample()), traffic.statuses + statuses_in(output)


def watch(service: RunningService, generating: subprocess.Popen[str]) -> list[Sample]:
    """A sample every second for as long as the generator runs; says how it is going once a minute.

    Raises:
        ServiceEndedError: it has not survived.
    """
    under_load: list[Sample] = []
    answered = service.answered()
    while True:
        try:
            generating.wait(1)
        except subprocess.TimeoutExpired:
            under_load.append(service.sample())
        else:
            return under_load
        if len(under_load) % 60 == 0:
            before, answered = answered, service.answered()
            rate = f"{(answered - before) / 60:7,.1f} requests/s"
            print(f"{len(under_load) // 60:3} min  {rate}  {shown(under_load[-1])}", flush=True)


def medians(window: Sequence[Sample]) -> Sample:
    """What was held most of the time."""
    return Sample(*(round(median(values)) for values in zip(*window, strict=True)))


def statuses_in(output: str) -> Counter[str]:
    """How often each status came, and each error in place of one, as the generator tells at its end."""
    statuses: Counter[str] = Counter()
    for count, error in ERROR_LINE.findall(output):
        if AT_THE_END not in error:
            statuses[error] += int(count)
    for status, count in STATUS_LINE.findall(output):
        statuses[status] += int(count)
    return statuses


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
