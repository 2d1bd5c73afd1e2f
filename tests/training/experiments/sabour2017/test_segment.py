"""Pixels of overlapping digits, assigned to one, the other or both."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.figures import areas
from tests.training.experiments.sabour2017.test_multimnist import PLAN as PAIRS
from training.data.run_images import evaluation_batches, training_batches
from training.experiments.runner import Runner
from training.experiments.sabour2017 import multimnist, segment
from training.experiments.sabour2017.segment import Apart, Sums, _percentages, _sums, take_apart

PLAN = segment.Plan(PAIRS.networks[multimnist.CAPSNET], seeds=(0,))


@pytest.fixture(scope="module")
def runner(tmp_path_factory, drawn_mnist_root):
    folder = tmp_path_factory.mktemp("segment")
    runner = Runner(folder / "out", folder / "networks", drawn_mnist_root, torch.device("cpu"))
    segment.run(runner, PLAN)
    return runner


@pytest.fixture(scope="module")
def model(runner):
    return runner.trained(PLAN.network).model


@pytest.fixture(scope="module")
def batch(runner):
    return next(evaluation_batches(PLAN.network, runner.root).fixed(200))


def measured(apart, threshold):
    return _percentages(Sums(*_sums(apart, threshold).tolist()))


def two_strokes():
    """One pair in a frame of 1x4: the first digit is in pixels 0 and 1, the second in 1 and 2."""
    objects = torch.tensor([[[[1, 1, 0, 0]], [[0, 1, 1, 0]]]]).float()
    return Apart(objects, objects.clone(), torch.tensor([[3, 5]]), torch.tensor([[3, 5]]))


def test_what_is_drawn_as_it_is_has_all_pixels_right():
    assert set(measured(two_strokes(), 0.5).values()) == {100.0}


def test_a_pixel_of_both_that_only_one_gets_is_wrong():
    apart = two_strokes()
    apart.drawn[0, 1, 0, 1] = 0
    found = measured(apart, 0.5)
    assert found["overlap_percent"] == 0
    assert found["single_percent"] == 100
    assert found["right_percent"] == pytest.approx(100 * 2 / 3)
    assert found["iou_percent"] == pytest.approx(100 * (1 + 1 / 2) / 2)


def test_what_is_drawn_where_there_is_no_ink_takes_nothing():
    apart = two_strokes()
    apart.drawn[0, :, 0, 3] = 1
    assert set(measured(apart, 0.5).values()) == {100.0}


def test_every_pixel_to_both_is_right_where_both_are_and_nowhere_else(runner):
    [row] = runner.rows()
    everything = row["rules"]["everything"]
    assert everything["overlap_percent"] == 100
    assert everything["single_percent"] == 0


def test_pairs_named_wrong_count_but_not_where_only_right_ones_do():
    apart = two_strokes()._replace(classes=torch.tensor([[3, 6]]))
    found = measured(apart, 0.5)
    assert found["iou_percent"] == 100
    assert found["named_iou_percent"] is None


def test_of_two_capsules_each_goes_with_its_own_class_and_the_other_with_what_is_left(model, batch):
    apart = take_apart(model, batch)
    for labels, classes in zip(apart.labels.tolist(), apart.classes.tolist(), strict=True):
        for place, label in enumerate(labels):
            assert label not in classes or classes[place] == label


def test_both_wrong_capsules_go_with_the_digits_that_they_look_like(model, batch):
    apart = take_apart(model, batch)
    wrong = ~(apart.classes[:, :, None] == apart.labels[:, None, :]).flatten(1).any(dim=1)
    assert wrong.any()
    as_given = (apart.drawn - apart.objects).square().sum(dim=(1, 2, 3))
    turned = (apart.drawn.flip(1) - apart.objects).square().sum(dim=(1, 2, 3))
    assert (as_given <= turned + 1e-3)[wrong].all()


def test_what_is_drawn_is_the_two_longest_capsules_decoded_alone(model, batch):
    apart = take_apart(model, batch)
    with torch.no_grad():
        v = model(batch.pixels)
        for place in range(2):
            only = torch.nn.functional.one_hot(apart.classes[:, place], 10).float()
            decoded = model.decoder(v * only[:, :, None], torch.ones(len(v), 10))[:, 0]
            torch.testing.assert_close(apart.drawn[:, place], decoded)
    longest = v.norm(dim=2).argsort(dim=1)[:, -2:].sort(dim=1).values
    assert torch.equal(apart.classes.sort(dim=1).values, longest)


def test_the_row_has_what_counting_pixel_by_pixel_gives(runner, model, batch):
    [row] = runner.rows()
    drawn, true = (tensor.numpy() for tensor in (take_apart(model, batch).drawn, batch.objects[:, :, 0] > 0))
    right = total = both_right = both = 0
    ious = []
    for pair in range(len(drawn)):
        ink = true[pair].any(axis=0)
        given = (drawn[pair] > row["threshold"]) & ink
        ious += [(given[k] & true[pair, k]).sum() / (given[k] | true[pair, k]).sum() for k in range(2)]
        for place in np.argwhere(ink):
            same = all(given[k][tuple(place)] == true[pair, k][tuple(place)] for k in range(2))
            overlap = all(true[pair, k][tuple(place)] for k in range(2))
            right, total = right + same, total + 1
            both_right, both = both_right + (same and overlap), both + overlap
    found = row["rules"]["chosen"]
    assert row["pairs"] == len(drawn) == 200
    assert found["right_percent"] == pytest.approx(100 * right / total)
    assert found["overlap_percent"] == pytest.approx(100 * both_right / both)
    assert found["iou_percent"] == pytest.approx(100 * np.mean(ious))


def test_the_threshold_is_chosen_without_the_test_pairs(runner, model):
    [row] = runner.rows()
    _, validation = training_batches(PLAN.network, runner.root)
    assert row["validation_pairs"] == len(validation) == 20
    right = segment.measure(model, validation, segment.THRESHOLDS)
    best = max(found["right_percent"] for found in right.values())
    assert right[row["threshold"]]["right_percent"] == best
    on_test = segment.measure(model, evaluation_batches(PLAN.network, runner.root), [row["threshold"]])
    assert row["rules"]["chosen"] == on_test[row["threshold"]]


def test_colors_say_to_which_digit_a_pixel_is_assigned():
    apart = two_strokes()
    apart.drawn[0, 0, 0, 0] = 0
    shown = segment.pictures(apart, 0.5)
    assert shown.shape == (1, 3, 1, 4, 3)
    assert [tuple(pixel) for pixel in shown[0, 0, 0]] == [(255,) * 3] * 3 + [(0,) * 3]
    assert [tuple(pixel) for pixel in shown[0, 1, 0]] == [
        segment.FIRST,
        segment.BOTH,
        segment.SECOND,
        (0, 0, 0),
    ]
    assert tuple(shown[0, 2, 0, 0]) == segment.NEITHER


def test_what_has_been_measured_is_not_measured_again(runner):
    before = runner.rows()
    segment.run(runner, replace(PLAN))
    assert runner.rows() == before


def test_the_report_is_made_of_the_row(runner):
    rows = runner.rows()
    text = segment.report(rows)
    assert f"| every pixel to both | {rows[0]['rules']['everything']['iou_percent']:.1f} |" in text
    assert "200 pairs" in text


def test_the_figure_has_the_colors_of_either_digit_and_of_both(tmp_path):
    np.save(tmp_path / "pairs.npy", segment.pictures(two_strokes(), 0.5))
    row = {"pictures": "pairs.npy", "captions": [["L:(3, 5)", "P:(3, 5)"]]}
    segment.plot([row], tmp_path / "figure.png")
    for color in (segment.FIRST, segment.SECOND, segment.BOTH):
        assert areas(tmp_path / "figure.png", color) == 2, "once as it is, once as it is assigned"
