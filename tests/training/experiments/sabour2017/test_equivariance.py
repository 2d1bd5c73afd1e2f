import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.figures import areas
from training.config import load_preset
from training.data.run_images import evaluation_batches
from training.evaluate.evaluation import BATCH
from training.experiments import figure
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.experiments.sabour2017 import equivariance
from training.experiments.sabour2017.equivariance import CAPSNET, CNN, MOTIONS, Motion
from training.models.capsnet import lengths

AMOUNTS = torch.linspace(-2, 2, 9)
LABELS = torch.arange(40) % 2


@pytest.fixture(scope="module")
def plan():
    networks = {
        CAPSNET: narrowed(load_preset("mnist"), 96, 1),
        CNN: narrowed(load_preset("mnist-cnn"), 96, 1),
    }
    few = {name: replace(one, data=replace(one.data, validation_images=20)) for name, one in networks.items()}
    return equivariance.Plan(few, (0,), images=40)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root, plan):
    folder = tmp_path_factory.mktemp("equivariance")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    equivariance.run(runner, plan)
    return runner


def dot_at(row: int, column: int) -> torch.Tensor:
    picture = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    picture[0, 0, row, column] = 255
    return picture


@pytest.mark.parametrize(
    ("motion", "amount", "expected"),
    [
        ("shift right", 3, (10, 18)),
        ("shift down", -2, (8, 15)),
        ("turn", 90, (15, 17)),  # clockwise around the middle of the picture, at 13.5
        ("scale", 0, (10, 15)),
    ],
)
def test_a_digit_moves_as_the_motion_says(motion, amount, expected):
    moved = equivariance.moved(dot_at(10, 15), MOTIONS[motion], amount)
    assert torch.equal(moved, dot_at(*expected))


def test_scaling_moves_ink_away_from_the_middle():
    larger, smaller = (equivariance.moved(dot_at(4, 13), MOTIONS["scale"], percent) for percent in (30, -30))
    assert larger[0, 0].sum(dim=1).argmax() < 4 < smaller[0, 0].sum(dim=1).argmax()


@pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS)
def test_each_motion_goes_as_far_to_both_sides_and_through_rest(motion: Motion):
    amounts = motion.amounts
    assert amounts[len(amounts) // 2] == 0
    assert (amounts[0], amounts[-1]) == (-motion.reach, motion.reach)


def changes(of_image: torch.Tensor) -> torch.Tensor:
    """Features [A, N, F] that go along with the motion, each image's in directions [N, F] of its own."""
    return AMOUNTS[:, None, None] * of_image


def test_features_that_go_along_tell_the_motion_whatever_direction_each_class_has():
    directions = torch.tensor([[1.0, 2, 0], [0, -1, 3]])[LABELS]
    assert equivariance.explained(changes(directions), AMOUNTS, LABELS) > 0.999


def test_directions_that_each_image_has_of_its_own_tell_nothing_of_other_images():
    directions = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    assert equivariance.explained(changes(directions), AMOUNTS, LABELS) < 0.3


def test_a_feature_that_never_changes_makes_no_difference():
    directions = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    uneven = changes(directions) + AMOUNTS.square()[:, None, None] * torch.arange(16)
    with_one_more = torch.cat([uneven, torch.zeros_like(uneven[..., :1])], dim=2)
    found = [equivariance.explained(some, AMOUNTS, LABELS, components=16) for some in (uneven, with_one_more)]
    assert found[0] == pytest.approx(found[1], abs=1e-3)


def test_features_that_say_how_far_but_not_in_which_direction_tell_nothing():
    evenly = AMOUNTS.square()[:, None, None] * torch.ones(40, 3)
    assert equivariance.explained(evenly, AMOUNTS, LABELS) < 0.01


def test_of_many_features_the_strongest_changes_alone_may_be_asked():
    strong = AMOUNTS.square()[:, None, None] * torch.tensor([10.0, 0]).expand(40, 2)
    weak = changes(torch.tensor([0.0, 1]).expand(40, 2))
    assert equivariance.explained(strong + weak, AMOUNTS, LABELS) > 0.9
    assert equivariance.explained(strong + weak, AMOUNTS, LABELS, components=1) < 0.01


def test_a_change_that_is_the_same_for_both_directions_takes_no_component_away():
    same = torch.tensor([5.0, 0, 0]).expand(len(AMOUNTS), 40, 3)
    strong = AMOUNTS.square()[:, None, None] * torch.tensor([0, 2.0, 0]).expand(40, 3)
    weak = changes(torch.tensor([0, 0, 1.0]).expand(40, 3))
    assert equivariance.explained(same + strong + weak, AMOUNTS, LABELS, components=2) > 0.9


def test_a_row_has_curves_that_begin_at_what_the_network_says_of_unmoved_digits(runner, plan):
    capsnet, cnn = runner.rows()
    assert (capsnet["features"], cnn["features"]) == (16, 48)
    model = runner.trained(plan.networks[CAPSNET]).model
    [batch] = evaluation_batches(plan.networks[CAPSNET], runner.root).fixed(BATCH)
    with torch.no_grad():
        of_label = lengths(model(batch.pixels[:40]))[batch.targets[:40].bool()].mean()
    for name, motion in MOTIONS.items():
        found, rest = capsnet["motions"][name], len(motion.amounts) // 2
        assert found["probability"][rest] == pytest.approx(float(of_label), abs=1e-5)
        assert found["degrees"][rest] == pytest.approx(0, abs=0.05)
        assert min(found["degrees"][0], found["degrees"][-1]) > 1
        assert np.shape(found["deviations"]) == (10, 16)


def test_deviations_are_slopes_from_end_to_end_in_those_of_unmoved_images():
    rest = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    found = equivariance._deviations(changes(torch.ones(40, 3)), rest.expand(9, -1, -1), AMOUNTS, LABELS)
    expected = [(4 / rest[label == LABELS].std(dim=0)).tolist() for label in (0, 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_report_has_both_networks_and_a_dimension_for_each_digit_and_motion(runner, tmp_path):
    rows = runner.rows()
    report = equivariance.report(rows)
    for name in MOTIONS:
        assert f"| {name}, CapsNet |" in report
        assert f"| {name}, CNN |" in report
    turn = rows[0]["motions"]["turn"]["deviations"][3]
    strongest = max(range(16), key=lambda dimension: abs(turn[dimension]))
    [line] = [line for line in report.splitlines() if line.startswith("| digit 3 ")]
    assert f"{strongest} ({turn[strongest]:+.1f})" in line.split("|")[4]
    equivariance.plot(rows, tmp_path / "figure.png")
    for color in (figure.OURS, figure.OTHER):
        assert areas(tmp_path / "figure.png", color) >= 2 * len(MOTIONS)


def test_what_has_been_measured_is_not_measured_again(runner, plan):
    before = (runner.out / "rows.jsonl").read_bytes()
    equivariance.run(replace(runner, networks=runner.networks / "empty"), plan)
    assert (runner.out / "rows.jsonl").read_bytes() == before


def test_a_turn_keeps_distances():
    linear, shift = MOTIONS["turn"].map_of(30)
    assert shift == [0, 0]
    assert linear == pytest.approx([math.sqrt(3) / 2, -0.5, 0.5, math.sqrt(3) / 2])
