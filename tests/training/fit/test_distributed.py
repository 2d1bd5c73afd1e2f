"""Two processes on the CPU train what one process trains, and stop together whatever stops one of them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.support.distributed_process import AVERAGED, CALIBRATED, FOLLOWING
from tests.support.paths import ROOT
from tests.training.fit.test_loop import fit, log
from training.cli import main
from training.models.cpu import convolution
from training.runs import checkpoint


def torchrun(processes, *arguments):
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *arguments]
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support/at_exit'}"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def check_that_gloo_has_ended(ran):
    """A thread of it that works while Python ends aborts the process, which is rare."""
    assert ran.stderr.count("at exit: python") >= 2
    assert not [line for line in ran.stderr.splitlines() if "at exit:" in line and "gloo" in line]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder in which distributed_process.py has trained."""
    folder = tmp_path_factory.mktemp("two")
    ran = torchrun(2, "tests/support/distributed_process.py", str(folder))
    assert ran.returncode == 0, ran.stderr
    check_that_gloo_has_ended(ran)
    return folder


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    """As in the processes of distributed_process.py."""
    monkeypatch.setattr(convolution, "has_bfloat16_instructions", lambda: False)


def tensors(run, file="model.safetensors"):
    return load_file(checkpoint.newest_checkpoint(run) / file)


def ends(run):
    """How a run ended, in each of the processes."""
    return [json.loads((run / f"process-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("file", ["model.safetensors", "raw.safetensors"])
def test_two_processes_learn_what_one_does_up_to_rounding(runs, tmp_path, file):
    fit(tmp_path, AVERAGED)
    found, expected = tensors(runs / "whole", file), tensors(tmp_path, file)
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-5, msg=name)


def test_the_log_is_that_of_one_process(runs, tmp_path):
    fit(tmp_path, AVERAGED)
    found, expected = log(runs / "whole"), log(tmp_path)
    assert [(row["kind"], row["step"]) for row in found] == [(row["kind"], row["step"]) for row in expected]
    for one, other in zip(found, expected, strict=True):
        loss = "classification_loss"
        assert one[loss] == pytest.approx(other[loss], rel=1e-5)


def test_a_run_that_two_processes_resume_is_to_the_bit_the_one_they_never_stopped(runs):
    for file in ("model.safetensors", "raw.safetensors", "optimizer.safetensors"):
        found, expected = tensors(runs / "parts", file), tensors(runs / "whole", file)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert checkpoint.read_progress(checkpoint.newest_checkpoint(runs / "parts")).resumed


def test_two_processes_that_read_different_checkpoints_go_on_from_the_first_ones(runs):
    first = json.loads((runs / "apart" / "process-0.json").read_text())
    second = json.loads((runs / "apart-second" / "process-1.json").read_text())
    assert first["finished"]
    assert second["weights"] == first["weights"]


def test_what_the_first_one_measures_ends_the_run_in_both(runs):
    assert [(end["finished"], end["step"]) for end in ends(runs / "stopped")] == [(True, 5), (True, 5)]


def test_matrix_capsules_without_betas_are_trained_by_two(runs):
    assert [end["finished"] for end in ends(runs / "mixing")] == [True, True]


def test_a_cnn_is_trained_by_cpus_of_which_one_has_instructions_for_bfloat16(runs):
    assert [end["finished"] for end in ends(runs / "mixed")] == [True, True]


def test_two_processes_calibrate_once_on_what_one_does(runs, tmp_path):
    """The whole first batch in both, not each on its half; and not once more when the run goes on."""
    fit(tmp_path, CALIBRATED)
    for file in ("model.safetensors", "raw.safetensors"):
        found, expected = tensors(runs / "calibrated", file), tensors(tmp_path, file)
        endings = ("final_inverse_temperature", "budget_offset")
        measured = [name for name in expected if name.endswith(endings)]
        assert len(measured) == 4
        for name in measured:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=0, msg=name)
    assert checkpoint.read_progress(checkpoint.newest_checkpoint(runs / "calibrated")).resumed


def test_two_processes_follow_their_batches_together(runs, tmp_path):
    """What the first one sees of a batch moves lambda in both: nearly as the whole batch would."""
    fit(tmp_path, FOLLOWING)
    assert [end["finished"] for end in ends(runs / "following")] == [True, True]
    found, expected, first = tensors(runs / "following"), tensors(tmp_path), tensors(runs / "calibrated")
    for name in (name for name in expected if name.endswith("final_inverse_temperature")):
        assert not torch.equal(found[name], first[name])
        torch.testing.assert_close(found[name], expected[name], rtol=0.5, atol=0, msg=name)


def test_a_signal_to_one_process_stops_both_after_the_same_step(runs):
    assert [(end["interrupted"], end["step"]) for end in ends(runs / "interrupted")] == [(True, 3), (True, 3)]
    assert checkpoint.newest_checkpoint(runs / "interrupted").name == "step-00000003"


def test_a_loss_that_is_not_finite_in_one_process_is_an_error_in_both(runs):
    errors = [end["error"] for end in ends(runs / "diverging")]
    assert all("loss is not finite at step 3" in error for error in errors)


def test_a_batch_that_cannot_be_shared_evenly_is_an_error_that_says_so(runs):
    for end in ends(runs / "uneven"):
        assert end["error"].startswith("a batch of 5 images cannot be shared evenly by 2 processes")
    assert checkpoint.newest_checkpoint(runs / "uneven") is None


def test_the_command_line_trains_by_torchrun_what_it_trains_alone(tmp_path):
    rng = np.random.default_rng(0)
    for index in range(24):
        folder = tmp_path / "pictures" / ("dark", "light")[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(120 * (index % 2), 120 + 120 * (index % 2), (32, 32), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{index}.png")
    command = ["fit", "--images", str(tmp_path / "pictures"), "--epochs", "1", "--device", "cpu", "--out"]
    ran = torchrun(2, "-m", "training.cli", *command, str(tmp_path / "two"))
    assert ran.returncode == 0, ran.stderr
    check_that_gloo_has_ended(ran)
    assert ran.stdout.count("finished at step") == 1, "the first process alone prints"
    assert not (tmp_path / "two" / "result.json").exists(), "the test set is measured by evaluate alone"
    with pytest.raises(SystemExit, match="0"):
        main([*command, str(tmp_path / "one")])
    for name in ("one", "two"):
        with pytest.raises(SystemExit, match="0"):
            main(["evaluate", str(tmp_path / name), "--device", "cpu"])
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    assert two["data"] == one["data"] == "images test set, 4 images"
    for loss in ("classification_loss", "reconstruction_loss"):
        assert two[loss] == pytest.approx(one[loss], rel=1e-4)
    progress = checkpoint.read_progress(checkpoint.newest_checkpoint(tmp_path / "two"))
    assert progress.command.startswith("torchrun --nproc-per-node 2 -m training.cli fit --images")
    assert progress.hardware.startswith("2 processes, each on ")
