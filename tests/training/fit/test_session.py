"""What a run holds is read while nobody else can change it, and each session says how it was configured."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from tests.training.fit.test_loop import CONFIG, CPU, hold_out, images, make_batches
from tests.training.test_cli import status
from training.experiments.runner import Runner, run_name
from training.fit.loop import Limits
from training.fit.session import training_session
from training.runs import checkpoint
from training.runs.lock import lock_folder
from training.runs.open_run import open_run

LONGER = replace(CONFIG, optimizer=replace(CONFIG.optimizer, epochs=3, cooldown_epochs=1))


def train(run, config=CONFIG, limits=None, **options):
    parts = hold_out(images(), config.data.validation_images, config.seed)
    with training_session(run, config, CPU, **options) as trainer:
        trainer.fit(*(make_batches(config.data, 3, part) for part in parts), limits or Limits())
    return checkpoint.read_progress(checkpoint.newest_checkpoint(run))


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after its first step."""
    train(tmp_path / "run", limits=Limits(max_minutes=1e-9))
    return tmp_path / "run"


def test_while_another_process_trains_its_checkpoints_are_not_read(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (checkpoint.newest_checkpoint(run) / "optimizer.safetensors").write_bytes(b"half of it")
    with lock_folder(run, "held by the test"):
        assert status("fit", "--out", run, "--resume", "--device", "cpu") == 2
    assert f"another process is training in {run}" in capsys.readouterr().err


def test_a_run_that_another_process_has_begun_meanwhile_is_not_written_over(stopped):
    with pytest.raises(ValueError, match="already holds a run"):
        train(stopped, LONGER, new=True)
    assert checkpoint.read_config(stopped) == CONFIG


def test_an_open_run_is_locked(tmp_path):
    with (
        training_session(tmp_path / "run", CONFIG, CPU),
        pytest.raises(ValueError, match="another process is training"),
        training_session(tmp_path / "run", CONFIG, CPU),
    ):
        pass


def test_experiments_open_their_runs_alike(tmp_path):
    runner = Runner(tmp_path / "out", tmp_path / "networks", tmp_path, CPU)
    drawn = replace(CONFIG, model=replace(CONFIG.model, classes=10))
    run = runner.networks / run_name(drawn)
    refusal = f"another process is training in {run}"
    with lock_folder(run, "held by the test"), pytest.raises(ValueError, match=refusal):
        runner.trained(drawn)


def test_a_session_that_is_configured_otherwise_says_so(stopped):
    progress = train(stopped, LONGER, Limits(max_minutes=1e-9))
    [note] = progress.resumed
    assert note.startswith("from step 1: ")
    assert note.endswith(
        "configured anew: optimizer.epochs 3 (2 before), optimizer.cooldown_epochs 1 (0 before)"
    )


def test_a_session_that_changes_nothing_says_nothing(stopped):
    [note] = train(stopped).resumed
    assert "configured anew" not in note


def test_each_checkpoint_keeps_what_its_session_was_configured_with(stopped):
    train(stopped, LONGER, Limits(max_minutes=1e-9))
    assert [checkpoint.read_config(each) for each in checkpoint.checkpoints(stopped)] == [CONFIG, LONGER]


def test_where_ones_own_pictures_lie_is_no_change(stopped):
    moved = replace(CONFIG, data=replace(CONFIG.data, folder="/elsewhere"))
    assert checkpoint.configured_anew(checkpoint.newest_checkpoint(stopped), moved) == ""


def test_nor_is_where_those_of_the_stage_before_lay():
    here, there = (
        replace(CONFIG, started_from={"config": {"data": {"folder": folder}}})
        for folder in ("/here", "/there")
    )
    assert checkpoint.changes_of(here, there) == ""


def test_the_best_checkpoint_is_read_with_all_that_belongs_to_it(stopped):
    train(stopped)
    best, expected = open_run(stopped, CPU), checkpoint.best_checkpoint(stopped)
    assert (best.name, best.config) == (expected.name, CONFIG)
    assert best.progress == checkpoint.read_progress(expected)
    weights = checkpoint.read_weights(expected)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in best.model.state_dict().items())


def test_a_best_checkpoint_that_somebody_has_removed_is_an_error(stopped):
    newest = checkpoint.newest_checkpoint(stopped)
    (newest / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        open_run(stopped, CPU)


def test_every_measurement_on_the_test_set_is_noted(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    before = (run / "measured.jsonl").read_text().splitlines()
    assert status("evaluate", run, "--device", "cpu") == 0
    *same, last = (run / "measured.jsonl").read_text().splitlines()
    assert same == before
    result = json.loads((run / "result.json").read_text())
    assert json.loads(last)["error_percent"] == result["error_percent"]
    assert json.loads(last)["checkpoint"] == result["checkpoint"]
