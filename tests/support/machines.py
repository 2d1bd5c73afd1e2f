"""Two machines for torchrun: network namespaces joined by a cable, or two addresses of this machine."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import ROOT

PORT = 29555  # of the rendezvous; in the fallback any free one would do, but it has to be known beforehand
RENDEZVOUS = "join_timeout=90,keep_alive_interval=1,keep_alive_max_attempt=3"


@dataclass
class Machine:
    """One of two; its processes start in a folder of its own, so that nothing is shared but by the network.

    Attributes:
        folder: its disk.
        address: by which the other one reaches it.
        interface: the network interface of this address.
        inside: command that runs another one on this machine.
        endpoint: host and port of the rendezvous.
        agents: torchruns started on it.
    """

    folder: Path
    address: str
    interface: str
    inside: list[str]
    endpoint: str
    agents: list[subprocess.Popen[str]] = field(default_factory=list)

    def torchrun(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `torchrun --nnodes 2` with a worker; its output is in the folder's `output-N`."""
        hosts = self.endpoint.startswith(self.address)
        options = {
            "nnodes": "2",
            "nproc-per-node": "1",
            "rdzv-backend": "c10d",
            "rdzv-endpoint": self.endpoint,
            "rdzv-id": "test",
            "rdzv-conf": f"{RENDEZVOUS},is_host={hosts}",
            "local-addr": self.address,
            "max-restarts": "3",
        }
        given = [text for name, value in options.items() for text in (f"--{name}", value)]
        settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.interface, "PYTHONPATH": str(ROOT)}
        settings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = (
            "1"  # else an agent that is started again cannot join
        )
        with (self.folder / f"output-{len(self.agents)}").open("w") as output:
            agent = subprocess.Popen(
                [*self.inside, sys.executable, "-m", "torch.distributed.run", *given, *arguments],
                cwd=self.folder,
                env=os.environ | settings,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.agents.append(agent)
        return agent

    def workers(self) -> list[int]:
        """Processes that the last agent has started."""
        agent = self.agents[-1].pid
        return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]

    def output(self) -> str:
        """What the agents and their workers have written."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("output-*")))

    def stop(self) -> None:
        """Kill what is still there."""
        for agent in self.agents:
            if agent.poll() is None:
                for pid in self.workers():
                    os.kill(pid, signal.SIGKILL)
                agent.kill()
            agent.wait()


def no_namespaces() -> str:
    """Why no network namespace can be made here; "" if one can."""
    if not shutil.which("ip"):
        return "ip (iproute2) is not installed"
    name = f"capsnet-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces need privileges: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


@contextmanager
def in_namespaces(folder: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two network namespaces and a cable between them; neither reaches anything else."""
    key = uuid.uuid4().hex[:6]
    names = [f"capsnet-{key}-{side}" for side in "ab"]
    ends = [f"cn{key}{side}" for side in "ab"]
    made = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", ends[1], "netns", names[1])
        machines = []
        for index, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            _ip("-n", name, "addr", "add", f"10.99.0.{index}/24", "dev", end)
            for device in (end, "lo"):
                _ip("-n", name, "link", "set", device, "up")
            own = folder / name[-1]
            own.mkdir(parents=True)
            inside = ["ip", "netns", "exec", name]
            machines.append(Machine(own, f"10.99.0.{index}", end, inside, f"10.99.0.1:{PORT}"))
        yield machines[0], machines[1]
    finally:
        for name in made:  # the cable ends with them
            _ip("netns", "del", name)


@contextmanager
def on_loopback(folder: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two addresses of the loopback interface, where nothing but the folders tells machines apart."""
    machines = []
    for index, name in enumerate("ab", 1):
        (folder / name).mkdir(parents=True)
        machines.append(Machine(folder / name, f"127.0.0.{index}", "lo", [], f"127.0.0.1:{PORT}"))
    yield machines[0], machines[1]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
