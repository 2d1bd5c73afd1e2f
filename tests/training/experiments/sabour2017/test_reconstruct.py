from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.figures import areas
from training.config import load_preset
from training.data.run_images import evaluation_batches
from training.evaluate.evaluation import evaluate
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.experiments.sabour2017 import reconstruct


@pytest.fixture(scope="module")
def plan():
    config = narrowed(load_preset("mnist"), 300, 1)
    return reconstruct.Plan(replace(config, data=replace(config.data, validation_images=20)), failures=3)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root, plan):
    folder = tmp_path_factory.mktemp("reconstruct")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    reconstruct.run(runner, plan)
    return runner


@pytest.fixture
def row(runner):
    [row] = runner.rows()
    return row


def test_counts_and_errors_are_those_of_the_evaluation(runner, plan, row):
    trained = runner.trained(plan.network)
    found = evaluate(trained.model, evaluation_batches(plan.network, runner.root), plan.network.loss)
    assert (row["images"], row["images"] - row["right"]) == (found.images, found.errors)
    assert 0 < found.errors < found.images, "else this test tells nothing"
    total = row["right"] * row["right_squared_error"] + found.errors * row["wrong_squared_error_of_label"]
    assert total / found.images == pytest.approx(found.reconstruction_loss, rel=1e-5)


def test_wrong_answers_come_in_pairs_drawn_as_the_label_and_as_the_prediction(row):
    wrong = [column for column in row["columns"] if column["label"] != column["prediction"]]
    assert wrong
    assert len(wrong) <= 2 * 3
    for as_label, as_prediction in zip(wrong[::2], wrong[1::2], strict=True):
        assert as_label["image"] == as_prediction["image"]
        assert (as_label["target"], as_prediction["target"]) == (as_label["label"], as_label["prediction"])
        assert as_prediction["length"] >= as_label["length"], "the answer is the longest capsule"
    assert len({column["label"] for column in wrong}) == len(wrong) // 2, "each of another label"


def test_the_columns_show_the_test_images_and_what_is_drawn_of_them(runner, plan, row):
    pictures = np.load(runner.out / row["pictures"])
    images = evaluation_batches(plan.network, runner.root).images
    assert pictures.shape == (len(row["columns"]), 2, 28, 28)
    for column, (shown, drawn) in zip(row["columns"], pictures, strict=True):
        assert int(images.labels[column["image"]]) == column["label"]
        assert (shown == images.pixels[column["image"], 0].numpy()).all()
        squared = ((shown.astype(float) - drawn) / 255) ** 2
        assert squared.sum() == pytest.approx(column["squared_error"], rel=0.05)


def test_the_papers_confusion_is_shown_first():
    label, prediction = torch.tensor([4, 5, 5, 1]), torch.tensor([9, 6, 3, 1])
    nothing = torch.zeros(4)
    answers = reconstruct.Answers(label, prediction, nothing, nothing, nothing)
    columns = reconstruct._wrong_columns(answers, count=2)
    assert columns == [(2, 0), (2, 1), (0, 0), (0, 1)]


def test_a_network_without_wrong_answers_has_columns_of_right_ones_alone():
    label = torch.tensor([2, 2, 9])
    nothing = torch.zeros(3)
    answers = reconstruct.Answers(label, label, nothing, nothing, nothing)
    assert reconstruct._wrong_columns(answers, count=2) == []
    assert reconstruct._right_columns(answers) == [(0, 0), (2, 0)]


def test_what_has_been_measured_is_not_measured_again(runner, plan):
    before = (runner.out / "rows.jsonl").read_bytes()
    reconstruct.run(replace(runner, networks=runner.networks / "empty"), plan)
    assert (runner.out / "rows.jsonl").read_bytes() == before
    assert not (runner.networks / "empty").exists(), "nor is a network trained for it"


def test_report_and_figure_have_all_columns(tmp_path, row):
    text = reconstruct.report([row])
    for column in row["columns"]:
        assert f"| ({column['label']}, {column['prediction']}, {column['target']}) |" in text
    flat = np.full((len(row["columns"]), 2, 28, 28), 77, np.uint8)
    np.save(tmp_path / row["pictures"], flat)
    reconstruct.plot([row], tmp_path / "figure.png")
    assert areas(tmp_path / "figure.png", (77, 77, 77), 1000) == 2 * len(row["columns"])
