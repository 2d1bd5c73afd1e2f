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


def test_its_loss_and_schedule_are_those_that_it_was_trained_with(run):
    trained = checkpoint.read_config(run)
    change(run, "optimizer", learning_rate=0.9, epochs=99)
    change(run, "loss", absent_weight=50.0)
    found = open_run(run, CPU)
    assert (found.recorded, found.config) == (trained, trained)
    assert config_from_options("drawn", start_from=run).started_from["config"]["loss"]["absent_weight"] == 0.5


@pytest.mark.parametrize(
    ("part", "name", "value", "told"),
    [(None, "seed", 5, r"seed 5 \(0 before\)"), ("model", "routing_iterations", 5, "routing_iterations 5")],
)
def test_a_run_whose_network_or_held_out_images_would_be_others_is_refused(run, part, name, value, told):
    change(run, part, **{name: value})
    with pytest.raises(ValueError, match=rf"config.json has changed since step-\d+: .*{told}"):
        open_run(run, CPU)


def test_the_configuration_of_a_checkpoint_that_records_none_is_the_runs(run):
    for recorded in run.glob("checkpoints/*/config.json"):
        recorded.unlink()
    change(run, "optimizer", learning_rate=0.9)
    assert open_run(run, CPU).recorded.optimizer.learning_rate == 0.9
