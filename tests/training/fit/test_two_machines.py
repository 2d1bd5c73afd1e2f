"""torchrun on two machines without a shared disk: what dies is started again and the curve stays the same."""

import json
import os
import signal
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.support.machines import in_namespaces, no_namespaces, on_loopback
from training.runs import checkpoint

EPOCHS = 8
PICTURES = 120
WITHIN_S = 150  # on a busy machine
COMMAND = ["-m", "training.cli", "fit", "--images", "pictures", "--epochs", str(EPOCHS), "--ema-decay", "0.9"]
COMMAND += ["--device", "cpu", "--out", "run"]


@pytest.fixture(scope="module")
def pair():
    """Makes two machines in a folder."""
    return on_loopback if no_namespaces() else in_namespaces


def start(machines):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 120, (PICTURES, 32, 32), dtype=np.uint8)
    for machine in machines:
        for index, picture in enumerate(noise):
            folder = machine.folder / "pictures" / ("dark", "light")[index % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture + 120 * (index % 2)).save(folder / f"{index}.png")
        machine.torchrun(*COMMAND)


def wait_until(condition, machines):
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        told = "\n".join(machine.output() for machine in machines)
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


def reach_epoch(epoch, machines):
    wait_until(lambda: all(epochs_done(machine) >= epoch for machine in machines), machines)


def epochs_done(machine):
    newest = checkpoint.newest_checkpoint(machine.folder / "run")
    return checkpoint.read_progress(newest).epochs if newest else 0


def finish(machines):
    wait_until(lambda: all(machine.agents[-1].poll() is not None for machine in machines), machines)
    for machine in machines:
        assert machine.agents[-1].returncode == 0, machine.output()


def log(machine):
    rows = [json.loads(line) for line in (machine.folder / "run" / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "train_seconds"} for row in rows]


def tensors(machine):
    newest = checkpoint.newest_checkpoint(machine.folder / "run")
    return {file.name: load_file(file) for file in newest.glob("*.safetensors")}


def same(found, expected):
    assert found.keys() == expected.keys()
    for file, named in expected.items():
        assert found[file].keys() == named.keys()
        assert all(torch.equal(found[file][name], tensor) for name, tensor in named.items()), file


def trained(pair, folder, disturb=lambda *_: None):
    with pair(folder) as machines:
        try:
            start(machines)
            disturb(machines)
            finish(machines)
        finally:
            for machine in machines:
                machine.stop()
    return machines


@pytest.fixture(scope="module")
def undisturbed(pair, tmp_path_factory):
    return trained(pair, tmp_path_factory.mktemp("undisturbed"))


def resumed(machine):
    return checkpoint.read_progress(checkpoint.newest_checkpoint(machine.folder / "run")).resumed


def kill_a_worker(machines):
    """First of the machine without the log, then of the one that writes it."""
    for machine, epoch in ((machines[1], 2), (machines[0], 4)):
        reach_epoch(epoch, machines)
        [worker] = machine.workers()
        os.kill(worker, signal.SIGKILL)


def kill_an_agent(machines):
    """The worker stays behind, notices, and makes room for the one that the next agent starts."""
    reach_epoch(2, machines)
    machines[1].agents[-1].kill()
    machines[1].torchrun(*COMMAND)


def test_both_machines_end_with_the_whole_run(undisturbed):
    one, other = undisturbed
    assert log(one) == log(other)
    assert log(one)[-1]["epoch"] == EPOCHS
    same(tensors(other), tensors(one))
    assert not resumed(one)
    command = checkpoint.read_progress(checkpoint.newest_checkpoint(one.folder / "run")).command
    assert command.startswith("torchrun --nnodes 2 --nproc-per-node 1 -m training.cli fit --images pictures")


@pytest.mark.parametrize("disturb", [kill_a_worker, kill_an_agent])
def test_what_is_killed_comes_back_and_the_curve_is_the_same(pair, undisturbed, tmp_path, disturb):
    machines = trained(pair, tmp_path, disturb)
    for machine in machines:
        assert log(machine) == log(undisturbed[0])
        same(tensors(machine), tensors(undisturbed[0]))
        assert len(resumed(machine)) == (2 if disturb is kill_a_worker else 1)
