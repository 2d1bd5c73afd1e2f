"""Matrix capsules on MNIST and CIFAR-10."""

from dataclasses import replace

import pytest
import torch

from tests.support.figures import areas
from training.config import load_preset
from training.data.batches import make_batches
from training.data.readers.files import MissingDataError
from training.data.run_images import load_images
from training.evaluate.evaluation import evaluate
from training.experiments import figure
from training.experiments.hinton2018 import matrix_others
from training.experiments.hinton2018.matrix_others import Plan
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.runs import checkpoint


def tiny(preset: str):
    config = narrowed(load_preset(preset), 64, 1)
    model = replace(config.model, conv_channels=4, primary_types=2, conv_caps_types=(2, 2))
    return replace(config, model=model, data=replace(config.data, validation_images=20))


PLAN = Plan({"mnist": tiny("matrix-mnist"), "cifar10": tiny("matrix-cifar10")}, (0, 1), test_images=150)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root):
    """Where MNIST alone is."""
    folder = tmp_path_factory.mktemp("others")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    with pytest.raises(MissingDataError, match="cifar10"):
        matrix_others.run(runner, PLAN)
    return runner


def test_the_error_is_that_of_an_evaluation_also_where_the_other_set_is_not_there(runner):
    assert [(row["data"], row["seed"]) for row in runner.rows()] == [("mnist", 0), ("mnist", 1)]
    for row in runner.rows():
        run = runner.networks / row["network"]
        config = checkpoint.read_config(run)
        model = checkpoint.load_model(run, checkpoint.best_checkpoint(run), runner.device)
        first = load_images(config, "test", runner.root)[:150]
        found = evaluate(model, make_batches(config.data, 10, first), config.loss)
        assert (row["error_percent"], row["images"]) == (found.error_percent, 150)
    assert "mnist is the first 150 test images." in matrix_others.report(runner.rows())


def test_a_run_that_goes_on_measures_nothing_twice(runner, tmp_path):
    again, before = replace(runner, networks=tmp_path / "no networks"), runner.rows()
    with pytest.raises(MissingDataError, match="cifar10"):
        matrix_others.run(again, PLAN)
    assert again.rows() == before
    assert not again.networks.exists()


def row_of(data: str, error: float) -> dict:
    row = {"data": data, "seed": 0, "error_percent": error, "images": 10_000, "at_most": None}
    return row | {"parameters": 300_000}


def test_the_papers_number_stands_beside_ours_and_a_copy_is_not_compared_with_it():
    text = matrix_others.report([row_of("mnist", 0.5), row_of("cifar10-jpeg", 20.0)])
    assert "| mnist | 300,000 | 0.50 | 0.44 | +0.06 |" in text
    assert "| cifar10-jpeg | 300,000 | 20.00 | 11.90 (cifar10) |  |" in text
    assert "mnist is 10,000 test images." in text
    assert "cifar10-jpeg is a copy of CIFAR-10" in text


def test_the_figure_has_our_error_and_the_papers_for_either_set(tmp_path):
    matrix_others.plot([row_of("mnist", 0.8), row_of("cifar10", 20.0)], tmp_path / "figure.png")
    legend = 1
    assert areas(tmp_path / "figure.png", figure.OURS) == 2 + legend
    assert areas(tmp_path / "figure.png", figure.PAPER) == 2 + legend
