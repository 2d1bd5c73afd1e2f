"""A run's best checkpoint comes with the configuration that it was trained with, not the run's of now."""

import json
import shutil

import pytest
import torch

from training.runs import checkpoint
from training.runs.open_run import open_run
from training.runs.run_config import config_from_options

CPU = torch.device("cpu")


@pytest.fixture
def run(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "run")


def change(run, part, **values):
    """Edit config.json, as the documentation lets people do before they resume."""
    config = json.loads((run / "config.json").read_text())
    (config if part is None else config[part]).update(values)
    (run / "config.json").write_text(json.dumps(config))


def test_it_has_the_network_data_and_loss_that_it_was_trained_with(run):
    trained = checkpoint.read_config(run)
    change(run, "optimizer", learning_rate=0.9, epochs=99)
    change(run, "loss", absent_weight=50.0)
    change(run, "model", routing_iterations=5)
    change(run, None, seed=5)  # which would hold out other images
    found = open_run(run, CPU)
    assert (found.recorded, found.config) == (trained, trained)
    assert config_from_options("drawn", start_from=run).started_from["config"]["loss"]["absent_weight"] == 0.5


def test_a_best_checkpoint_that_is_replaced_while_it_is_opened_is_not_missed(run, monkeypatch):
    best, read = checkpoint.best_checkpoint(run), checkpoint.read_progress

    def replaced(opened):
        monkeypatch.setattr(checkpoint, "read_progress", read)
        step = read(opened).step
        newer = best.rename(checkpoint.checkpoint_at(run, step + 1))
        progress = json.loads((newer / "progress.json").read_text())
        (newer / "progress.json").write_text(json.dumps(progress | {"step": step + 1, "best_step": step + 1}))
        return read(opened)

    monkeypatch.setattr(checkpoint, "best_checkpoint", lambda run: max(checkpoint.checkpoints(run)))
    monkeypatch.setattr(checkpoint, "read_progress", replaced)
    assert open_run(run, CPU).name == checkpoint.checkpoints(run)[-1].name != best.name
