from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.figures import areas
from training.config import load_preset
from training.data.run_images import evaluation_batches
from training.evaluate.evaluation import BATCH
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.experiments.sabour2017 import perturb
from training.models.capsnet import lengths


@pytest.fixture(scope="module")
def plan():
    config = narrowed(load_preset("mnist"), 96, 1)
    return perturb.Plan(replace(config, data=replace(config.data, validation_images=20)), images=6)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root, plan):
    folder = tmp_path_factory.mktemp("perturb")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    perturb.run(runner, plan)
    return runner


def test_a_pose_moves_along_one_dimension_at_a_time():
    pose = torch.randn(3, 4)
    found = perturb.moved(pose, torch.tensor([-0.25, 0.0, 0.25]))
    assert found.shape == (3, 4, 3, 4)
    assert torch.equal(found[:, :, 1], pose.unsqueeze(1).expand(-1, 4, -1)), "a step of 0 leaves it"
    expected = pose[2].clone()
    expected[1] += 0.25
    assert torch.equal(found[2, 1, 2], expected)


def test_each_digit_is_drawn_for_every_dimension_and_step_of_the_paper(runner):
    rows = runner.rows()
    assert [row["digit"] for row in rows] == list(range(10))
    for row in rows:
        pictures = np.load(runner.out / row["pictures"])
        assert (pictures.shape, pictures.dtype) == ((16, 11, 28, 28), np.uint8)
        assert (pictures[:, 5] == pictures[0, 5]).all(), "the middle is the unchanged digit"


def test_the_middle_picture_is_the_decoders_of_the_image_with_the_longest_capsule(runner, plan):
    model = runner.trained(plan.network).model
    [batch] = evaluation_batches(plan.network, runner.root).fixed(BATCH)
    sevens = batch.pixels[batch.targets[:, 7] == 1][: plan.images]
    with torch.no_grad():
        v = model(sevens)
        surest = lengths(v)[:, 7].argmax()
        mask = torch.nn.functional.one_hot(torch.tensor([7]), 10).float()
        drawn = model.decoder(v[surest : surest + 1], mask)[0, 0]
    pictures = np.load(runner.out / runner.rows()[7]["pictures"])
    assert np.abs(pictures[0, 5] - 255 * drawn.numpy()).max() <= 0.6


def test_properties_say_how_much_ink_there_is_and_where():
    picture = torch.zeros(28, 28)
    picture[10:18, 6:10] = 0.5
    ink, width, height, slant, x, y = perturb.properties(picture).tolist()
    assert (ink, x, y) == pytest.approx((16, 7.5, 13.5))
    assert height > 1.5 * width
    assert slant == pytest.approx(0, abs=1e-9)


def test_a_slant_to_the_right_is_positive():
    stroke = torch.eye(28).flip(1)  # from the lower left to the upper right
    slant = perturb.properties(stroke)[perturb.PROPERTIES.index("slant")]
    assert slant == pytest.approx(1)


def test_what_has_been_measured_is_not_measured_again(runner, plan):
    before = (runner.out / "rows.jsonl").read_bytes()
    perturb.run(replace(runner, networks=runner.networks / "empty"), plan)
    assert (runner.out / "rows.jsonl").read_bytes() == before
    assert not (runner.networks / "empty").exists(), "nor is a network trained for it"


def test_the_report_counts_digits_whose_width_a_dimension_changes():
    def row(digit, width):
        effects = {name: [0.1] * 16 for name in perturb.PROPERTIES} | {"width": [0.0] * 15 + [width]}
        return {"digit": digit, "images": 10, "effects": effects, "network": "mnist-0-abc"}

    rows = [row(3, -1.25), row(4, 0.5)]
    text = perturb.report(rows)
    assert "| digit 3 | +0.1 (0) | -1.2 (15) |" in text
    assert "1 of 2 digits" in text
    assert "weighs reconstructions" not in text
    text = perturb.report([row | {"network": "mnist-official-0-abc"} for row in rows])
    assert "weighs reconstructions 20 times as much" in text


def test_the_figure_has_a_strip_for_every_dimension_of_the_digits_shown(runner, tmp_path):
    rows = runner.rows()
    for row in rows:
        np.save(tmp_path / row["pictures"], np.full((16, 11, 28, 28), 77, np.uint8))
    perturb.plot(rows, tmp_path / "figure.png")
    assert areas(tmp_path / "figure.png", (77, 77, 77), 1000) == 16 * len(perturb.SHOWN_DIGITS)
