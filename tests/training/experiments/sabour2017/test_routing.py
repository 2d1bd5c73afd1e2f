import itertools
import json
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from tests.support.figures import areas
from tests.support.small_pictures import saved
from training.config import load_preset
from training.data.readers.cifar10 import CLASS_NAMES
from training.data.run_images import evaluation_batches
from training.experiments import figure
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.experiments.sabour2017 import routing
from training.runs import checkpoint


def tiny(preset, images, epochs):
    config = narrowed(load_preset(preset), images, epochs)
    return replace(config, data=replace(config.data, validation_images=10))


@pytest.fixture(scope="module")
def plan():
    return routing.Plan(routing._steady(tiny("mnist", 64, 2), 2), (0, 1, 2), 50, tiny("cifar10", 40, 2))


@pytest.fixture(scope="module")
def root(tmp_path_factory, drawn_mnist_root):
    """MNIST's files, and those of the JPEG copy of CIFAR-10."""
    root = tmp_path_factory.mktemp("data")
    (root / "mnist").symlink_to(drawn_mnist_root / "mnist")
    (root / "cifar10").mkdir()
    pictures = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)
    files = [saved(Image.fromarray(picture), "JPEG") for picture in pictures]
    np.savez(
        root / "cifar10" / "train-jpeg.npz",
        jpeg=np.frombuffer(b"".join(files), np.uint8),
        offsets=np.cumsum([0, *map(len, files)]),
        labels=np.arange(60, dtype=np.uint8) % 10,
        classes=np.array(CLASS_NAMES),
    )
    return root


@pytest.fixture(scope="module")
def runner(tmp_path_factory, root, plan):
    folder = tmp_path_factory.mktemp("routing")
    runner = Runner(folder / "out", folder / "networks", root, torch.device("cpu"))
    routing.run(runner, plan)
    return runner


def procedure_1(u_hat, iterations):
    """What each iteration adds to the logits of one example, from votes [I, J, D]; as the paper has it."""
    b = np.zeros(u_hat.shape[:2])
    for _ in range(iterations):
        c = np.exp(b) / np.exp(b).sum(axis=1, keepdims=True)
        s = (c[..., None] * u_hat).sum(axis=0)
        squared = (s**2).sum(axis=1, keepdims=True)
        v = squared / (1 + squared) * s / np.sqrt(squared)
        change = (u_hat * v).sum(axis=2)
        b = b + change
        yield change


def test_changes_are_those_of_procedure_1(runner, plan):
    trained = routing.stage(runner, plan.network, 2)
    model = trained.model
    shown = evaluation_batches(plan.network, runner.root)
    shown.images = shown.images[:3]
    [batch] = shown.fixed(3)
    with torch.no_grad():
        u = model.primary_caps(model.conv1.conv_relu(batch.pixels))
    weight = model.class_caps.weight.detach().unflatten(2, (10, 16))
    votes = torch.einsum("bie,iejd->bijd", u, weight).double().numpy()
    changes = np.array([list(procedure_1(u_hat, 6)) for u_hat in votes])  # [B, R, I, J]
    expected = np.abs(changes).mean(axis=(0, 2, 3))
    settling = np.abs(np.diff(changes, axis=1)).mean(axis=(0, 2, 3))
    found = routing.logit_changes(model, shown, 6)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4)
    np.testing.assert_allclose(found[1, 1:], settling, rtol=1e-2)


def test_looking_leaves_the_network_as_it_was(runner, plan):
    trained = routing.stage(runner, plan.network, 2)
    shown = evaluation_batches(plan.network, runner.root)
    [batch] = shown.fixed(200)
    before = trained.model(batch.pixels)
    routing.logit_changes(trained.model, shown, 5)
    assert torch.equal(trained.model(batch.pixels), before)


def test_a_stage_is_the_network_of_a_training_that_ends_there(runner, plan, tmp_path):
    at_once = routing.stage(replace(runner, out=tmp_path), plan.network, 2)
    by_stages = routing.stage(runner, plan.network, 2)
    assert by_stages.progress.step == at_once.progress.step == 4
    for name, weight in at_once.model.state_dict().items():
        assert torch.equal(weight, by_stages.model.state_dict()[name]), name


def test_a_stage_that_is_over_is_refused(runner, plan):
    with pytest.raises(ValueError, match="trained for 2 epochs, and what it was like after 1"):
        routing.stage(runner, plan.network, 1)


def test_each_stage_and_both_losses_are_measured(runner, plan):
    rows = runner.rows()
    assert [row.get("epoch", row.get("iterations")) for row in rows] == [0, 1, 2, 1, 3]
    assert [row["steps"] for row in rows[:3]] == [0, 2, 4]
    assert all(row["images"] == 50 and len(row["change"]) == 10 for row in rows[:3])
    assert rows[0]["change"] != rows[2]["change"], "training changes it"


def test_losses_are_those_of_the_run_and_name_their_data(runner):
    row = runner.rows()[-1]
    log = (runner.networks / row["network"] / "log.jsonl").read_text().splitlines()
    logged = [entry for entry in map(json.loads, log) if entry["kind"] == "train"]
    assert len(logged) > 1, "epochs end with a row"
    steps = np.diff([0, *(entry["step"] for entry in logged)])
    mean_loss = np.average([entry["loss"] for entry in logged], weights=steps)
    assert row["loss"] == pytest.approx([mean_loss]), "of so few steps there is one point"
    assert row["at_step"] == [logged[-1]["step"]]
    assert row["data"] == "cifar10-jpeg"
    assert "copy of CIFAR-10" in routing.report(runner.rows())


def test_a_curve_is_the_same_however_often_the_loss_was_logged():
    losses = np.random.default_rng(0).uniform(0, 1, 400)  # of each step

    def curve(*ends: int) -> tuple[list[int], list[float]]:
        parts = itertools.pairwise((0, *ends))
        return routing.loss_curve(ends, [losses[start:end].mean() for start, end in parts])

    undisturbed = range(50, 401, 50)
    at_step, loss = curve(*undisturbed)
    assert at_step == [*undisturbed]
    assert loss == pytest.approx([losses[end - 50 : end].mean() for end in undisturbed])
    stopped = sorted({*undisturbed, 85, 117, 351})  # at a checkpoint, and where an epoch ends
    assert curve(*stopped)[1] == pytest.approx(loss)
    assert sum(curve(351, 400)[1]) / 8 == pytest.approx(losses.mean())


def test_what_has_been_measured_is_not_measured_again(runner, plan):
    before = (runner.out / "rows.jsonl").read_bytes()
    routing.run(replace(runner, networks=runner.networks / "empty"), plan)
    assert (runner.out / "rows.jsonl").read_bytes() == before
    assert not (runner.networks / "empty").exists(), "nor is a network trained for it"


def test_the_plans_networks_are_trained_to_their_last_stage_at_a_steady_rate():
    for plan in (routing.FULL, routing.QUICK):
        assert plan.network.optimizer.cooldown_epochs == 0
        assert plan.network.optimizer.epochs == plan.stages[-1]
        assert list(plan.stages) == sorted(plan.stages)


def test_the_report_has_the_papers_numbers_beside_ours():
    change = [0.01, 0.009, 0.01, 0.01, 0.018, *[0.02] * 5]
    row = {"figure": "A.1", "epoch": 500, "images": 10, "trained_iterations": 3, "change": change}
    text = routing.report([row | {"settling": [0.001] * 9}])
    assert "| 2 | 0.009 | 0.009 | 0.007 | +0.002 | 0.001 |" in text
    assert "it does not fall: the ratio is 2, the paper's 0.0014" in text


def test_losses_on_two_data_sets_are_not_compared():
    row = {"figure": "A.2", "batch_size": 32, "at_step": [1, 2], "loss": [0.5, 0.25]}
    of_both = [row | {"data": "cifar10-jpeg", "iterations": count} for count in (1, 3)]
    of_both.append(row | {"data": "cifar10", "iterations": 1})
    text = routing.report(of_both)
    assert "training loss on cifar10, margin" in text
    assert "Ours ends" not in text
    assert "3 iterations |" not in text


def test_the_figure_has_a_line_for_every_iteration_and_the_papers_numbers(runner, tmp_path):
    routing.plot(runner.rows(), tmp_path / "figure.png")
    colors = mpl.colormaps["viridis"].resampled(routing.ITERATIONS)
    for iteration in range(routing.ITERATIONS):
        assert areas(tmp_path / "figure.png", to_hex(colors(iteration))) > 1, "a line, and its legend"
    legend = 1
    assert areas(tmp_path / "figure.png", figure.PAPER) == len(routing.PAPER_CHANGE) + legend


def test_losses_are_those_of_networks_with_as_many_iterations_as_their_lines_name(runner):
    found = {}
    for row in runner.rows():
        if row["figure"] == "A.2":
            found[row["iterations"]] = checkpoint.read_config(runner.networks / row["network"]).model
    assert {named: model.routing_iterations for named, model in found.items()} == {1: 1, 3: 3}
