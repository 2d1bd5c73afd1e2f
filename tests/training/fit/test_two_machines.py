"""torchrun on two machines without a shared disk: what dies is started again and the curve stays the same."""

import math
import os
import signal
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.support.json_lines import written_lines
from tests.support.machines import Machine, in_namespaces, no_namespaces, on_loopback
from training.runs import checkpoint

pytestmark = pytest.mark.long

EPOCHS = 8
PICTURES = 120
WITHIN_S = 150  # on a busy machine
COMMAND = ["-m", "training.cli", "fit", "--images", "pictures", "--epochs", str(EPOCHS), "--ema-decay", "0.9"]
COMMAND += ["--device", "cpu", "--out", "run"]


@pytest.fixture(scope="module")
def pair():
    """Makes two machines in a folder."""
    return on_loopback if no_namespaces() else in_namespaces


def start(machines, command=COMMAND):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 120, (PICTURES, 32, 32), dtype=np.uint8)
    for machine in machines:
        for index, picture in enumerate(noise):
            folder = machine.folder / "pictures" / ("dark", "light")[index % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture + 120 * (index % 2)).save(folder / f"{index}.png")
        machine.torchrun(*command)


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
    rows = written_lines(machine.folder / "run" / "log.jsonl")
    return [{name: value for name, value in row.items() if name != "train_seconds"} for row in rows]


def of_kind(kind, rows):
    return [row for row in rows if row["kind"] == kind]


def loss_by_epoch(rows):
    """Mean over each epoch's steps, however many rows these are logged in."""
    sums, before = dict.fromkeys(range(1, EPOCHS + 1), 0.0), 0
    for row in of_kind("train", rows):
        sums[math.ceil(row["epoch"])] += (row["step"] - before) * row["loss"]
        before = row["step"]
    return [total * EPOCHS / before for total in sums.values()]


def tensors(machine):
    newest = checkpoint.newest_checkpoint(machine.folder / "run")
    return {file.name: load_file(file) for file in newest.glob("*.safetensors")}


def same(found, expected):
    assert found.keys() == expected.keys()
    for file, named in expected.items():
        assert found[file].keys() == named.keys()
        assert all(torch.equal(found[file][name], tensor) for name, tensor in named.items()), file


def trained(pair, folder, disturb=lambda *_: None, command=COMMAND):
    with pair(folder) as machines:
        try:
            start(machines, command)
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
    """The first process, which writes the log and the checkpoints."""
    reach_epoch(2, machines)
    [worker] = machines[0].workers()
    os.kill(worker, signal.SIGKILL)


def kill_an_agent(machines):
    """The worker stays behind, notices, and makes room for the one that the next agent starts."""
    reach_epoch(2, machines)
    machines[1].agents[-1].kill()
    machines[1].torchrun(*COMMAND)


def stop_a_machine(machines):
    """torchrun has its worker write a checkpoint; so does the other one, and waits."""
    reach_epoch(2, machines)
    machines[1].agents[-1].terminate()
    wait_until(lambda: machines[1].agents[-1].poll() is not None, machines)
    assert machines[0].agents[-1].poll() is None
    machines[1].torchrun(*COMMAND)


def test_both_machines_end_with_the_whole_run(undisturbed):
    one, other = undisturbed
    assert log(one) == log(other)
    assert log(one)[-1]["epoch"] == EPOCHS
    same(tensors(other), tensors(one))
    assert not resumed(one)
    command = checkpoint.read_progress(checkpoint.newest_checkpoint(one.folder / "run")).command
    assert command.startswith("torchrun --nnodes 2 --nproc-per-node 1 -m training.cli fit --images pictures")


def test_a_killed_worker_comes_back_and_the_curve_is_to_the_bit_the_same(pair, undisturbed, tmp_path):
    for machine in trained(pair, tmp_path, kill_a_worker):
        assert log(machine) == log(undisturbed[0])
        same(tensors(machine), tensors(undisturbed[0]))
        assert len(resumed(machine)) == 1


def test_a_killed_agent_is_started_again_and_the_curve_is_the_same(pair, undisturbed, tmp_path):
    """The worker that it leaves stops with a checkpoint within an epoch, which adds a row to the log."""
    expected = log(undisturbed[0])
    for machine in trained(pair, tmp_path, kill_an_agent):
        rows = log(machine)
        assert of_kind("validation", rows) == of_kind("validation", expected)
        assert loss_by_epoch(rows) == pytest.approx(loss_by_epoch(expected), rel=1e-6)
        same(tensors(machine), tensors(undisturbed[0]))
        assert len(resumed(machine)) == 1


def test_a_machine_that_is_stopped_comes_back_and_both_go_on(pair, undisturbed, tmp_path):
    machines = trained(pair, tmp_path, stop_a_machine)
    said = "".join(machine.output() for machine in machines)
    assert "the same command on every machine continues it" in said
    for machine in machines:
        assert of_kind("validation", log(machine)) == of_kind("validation", log(undisturbed[0]))
        same(tensors(machine), tensors(undisturbed[0]))
        assert len(resumed(machine)) == 1


def test_machines_that_share_a_folder_keep_one_copy(pair, undisturbed, tmp_path):
    trained(pair, tmp_path, command=[*COMMAND[:-1], "../run"])
    [names] = [{path.name for path in (tmp_path / "run").iterdir()}]
    assert names == {".lock", "checkpoints", "config.json", "log.jsonl", "tensorboard"}
    (tmp_path / "c").mkdir()
    (tmp_path / "run").rename(tmp_path / "c" / "run")
    shared = Machine(tmp_path / "c", "", "", [], "")
    assert log(shared) == log(undisturbed[0])
    same(tensors(shared), tensors(undisturbed[0]))
