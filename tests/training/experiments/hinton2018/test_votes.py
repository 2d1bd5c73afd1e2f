"""Votes for class capsules, in each iteration of routing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.figures import areas
from tests.support.smallnorb_files import PAIRS, store
from training.config import load_preset
from training.data.readers.files import MissingDataError
from training.experiments import figure
from training.experiments.hinton2018 import votes
from training.experiments.quick import narrowed
from training.experiments.runner import Runner
from training.models.standardize import standardize_per_image


def tiny():
    config = narrowed(load_preset("matrix-smallnorb-small"), 64, 1)
    data = replace(config.data, name="toys", resize_pixels=24, crop_pixels=20, validation_images=60)
    narrow = {"conv_channels": 4, "primary_types": 2, "conv_caps_types": (2, 3), "decoder_hidden": ()}
    return replace(config, model=replace(config.model, image_size=20, **narrow), data=data)


PLAN = votes.Plan({"smallnorb": load_preset("matrix-smallnorb"), "toys": tiny()}, images=100)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("votes")
    store(folder / "data", "toys")
    runner = Runner(folder / "out", folder / "networks", folder / "data", torch.device("cpu"))
    votes.run(runner, PLAN)
    return runner


@pytest.fixture(scope="module")
def row(runner):
    [row] = runner.rows()
    return row


@pytest.fixture(scope="module")
def model(runner):
    return runner.trained(PLAN.networks["toys"]).model


@pytest.fixture(scope="module")
def shown(runner):
    return next(runner.evaluation_batches(PLAN.networks["toys"], 100).fixed(100))


@pytest.fixture(scope="module")
def found(model, shown):
    return votes.votes_for_classes(model, shown.pixels)


def test_each_vote_is_shared_out_to_the_classes_equally_at_first(found):
    iterations, images, classes, _ = found.assignments.shape
    assert (iterations, images, classes) == (3, 100, 5)
    torch.testing.assert_close(found.assignments.sum(dim=2), torch.ones_like(found.assignments[:, :, 0]))
    torch.testing.assert_close(found.assignments[0], torch.full_like(found.assignments[0], 1 / classes))
    assert (found.assignments[2] - found.assignments[1]).abs().max() > 0.01


def test_the_last_iteration_is_the_networks_answer(found, model, shown):
    with torch.no_grad():
        answer = model.classify(shown.pixels)
    torch.testing.assert_close(found.probabilities[-1], answer.probabilities, rtol=1e-4, atol=1e-5)


def test_distances_are_to_the_mean_that_shares_and_activations_make(found, model, shown):
    """Procedure 1, lines 2 and 3, in the last iteration; the network's own poses are these means."""
    with torch.no_grad():
        poses = model.classify(shown.pixels).poses
        capsules = model.primary_caps(torch.relu(model.conv(standardize_per_image(shown.pixels))))
        for layer in model.conv_caps:
            capsules = layer(capsules)
        cast = model.class_caps.votes(capsules.poses)[:, 0]  # [B, J, N, 16]
    expected = (cast - poses.unsqueeze(2)).square().sum(dim=3).sqrt()
    torch.testing.assert_close(found.distances[-1], expected, rtol=1e-3, atol=1e-4)
    mass = found.assignments[-1] * capsules.activations.flatten(1)[:, None]
    floor = model.class_caps.routing.constants.mass_floor
    means = torch.einsum("bjn,bjnh->bjh", mass, cast) / (mass.sum(dim=2, keepdim=True) + floor)
    torch.testing.assert_close(means, poses, rtol=1e-3, atol=1e-3)


def test_looking_leaves_the_network_as_it_was(model, shown):
    before = model(shown.pixels).poses
    votes.votes_for_classes(model, shown.pixels)
    assert torch.equal(model(shown.pixels).poses, before)


def test_rows_share_out_every_vote_among_the_right_class_and_the_wrong_ones(row):
    right, wrong = np.sum(row["complete"], axis=2).T
    np.testing.assert_allclose(right + 4 * wrong, 1, rtol=1e-5)
    assert right[0] == pytest.approx(0.2)
    assert row["images"] == 100 < PAIRS


def test_rows_have_the_mean_of_what_every_image_has(row, found, shown):
    right = shown.targets.bool()
    expected = found.assignments[:, right].mean(dim=(1, 2)).tolist()
    assert np.sum(row["complete"], axis=2)[:, 0] == pytest.approx(expected, rel=1e-4)
    assert [each[0] for each in row["probability"]] == pytest.approx(
        found.probabilities[:, right].mean(dim=1).tolist(), rel=1e-4
    )


def test_near_is_what_is_nearer_than_half_of_the_first_votes(row, found):
    near = found.assignments[0][found.distances[0] < row["zoom"]].sum() / found.assignments[0].sum()
    assert near == pytest.approx(0.5, abs=0.05)
    counted = np.array(row["complete"])[0, :, : votes.BINS // 2].sum(axis=1) @ [1, 4]
    assert counted == pytest.approx(near.item(), abs=1e-4)


def test_an_examples_histograms_are_of_the_near_votes_of_its_image(row, found):
    example = row["examples"][0]
    distances, shares = found.distances[:, example["image"]], found.assignments[:, example["image"]]
    within = (shares * (distances <= 0.999 * row["zoom"])).sum(dim=2).numpy()
    # Rounding moves a vote on the edge.
    about = (shares * (distances <= 1.001 * row["zoom"])).sum(dim=2).numpy()
    counted = np.sum(example["zoomed"], axis=2)
    assert (within - 1e-3 <= counted).all()
    assert (counted <= about + 1e-3).all()
    assert (about - within < 0.3).all()


def test_examples_are_a_truck_and_a_human_routed_right_and_the_papers_failure_where_there_is_one():
    names = ("animal", "human", "airplane", "truck", "car")
    labels, answers = [0, 3, 3, 1, 2, 1], [1, 0, 3, 1, 4, 0]
    assert votes.chosen(labels, answers, names) == [2, 3, 4]
    assert votes.chosen([0, 0], [0, 1], names) == [1]
    assert votes.chosen([0], [0], names) == []


def test_what_has_been_measured_is_not_measured_again(runner):
    before = (runner.out / "rows.jsonl").read_bytes()
    votes.run(replace(runner, networks=runner.networks / "empty"), PLAN)
    assert (runner.out / "rows.jsonl").read_bytes() == before
    assert not (runner.networks / "empty").exists(), "nor is a network trained for it"


def test_without_any_data_both_sets_are_named_with_what_brings_them(tmp_path):
    runner = Runner(tmp_path / "out", tmp_path / "networks", tmp_path, torch.device("cpu"))
    with pytest.raises(MissingDataError, match=r"(?s)download smallnorb.*make toys"):
        votes.run(runner, PLAN)


def test_the_report_has_shares_near_and_far():
    complete = [[[0.1] * 20 + [0.0] * 20, [0.001] * 40]]
    row = {"data": "toys", "images": 9, "zoom": 0.5, "complete": complete, "probability": [[0.9, 0.25]]}
    assert "| 1 | 200.0 | 4.0 | 200.0 | 2.0 | 90.0 | 25.0 |" in votes.report([row])
    assert "toys is not smallnorb" in votes.report([row])


def test_the_figure_has_a_row_for_all_images_and_one_for_each_example(runner, row, tmp_path):
    for example in row["examples"]:
        np.save(tmp_path / example["picture"], np.load(runner.out / example["picture"]))
    votes.plot([row], tmp_path / "figure.png")
    assert areas(tmp_path / "figure.png", figure.OURS) >= 3
    with Image.open(tmp_path / "figure.png") as image:
        assert image.height == round(2.4 * figure.DPI) * (1 + len(row["examples"]))


@pytest.mark.parametrize("last", [0, 1])
def test_networks_of_two_and_three_iterations_are_reported_and_drawn_together(last, row, tmp_path):
    three = row | {"examples": []}
    two = three | {"data": "smallnorb"} | {name: row[name][:2] for name in ("complete", "probability")}
    both = [two, three] if last else [three, two]
    assert [votes.report(both).count(f"\n| {t} |") for t in (1, 2, 3)] == [2, 2, 1]
    votes.plot(both, tmp_path / "figure.png")
    assert areas(tmp_path / "figure.png", figure.OURS) >= 5
