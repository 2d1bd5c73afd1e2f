"""Familiar viewpoints and novel ones; networks that are matched on the familiar ones."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.figures import areas
from tests.support.smallnorb_files import CATEGORIES, PAIRS, store
from tests.support.tiny_networks import tiny_toys
from training.config import Block
from training.data.datasets import load_split
from training.data.readers.smallnorb import ToySplit
from training.data.run_images import evaluation_batches, training_batches
from training.data.viewpoints import are_familiar
from training.experiments import figure
from training.experiments.hinton2018 import viewpoints
from training.experiments.hinton2018.viewpoints import (
    ALONG,
    CAPSULES,
    CNN,
    STOPPED_CNN,
    Plan,
    stopped_at,
    with_familiar,
)
from training.experiments.runner import Runner, networks_of
from training.runs import checkpoint

FAMILIAR_PAIRS = PAIRS // 3


CAPSULES_CONFIG = tiny_toys(
    "matrix-toys", 2, conv_channels=4, primary_types=2, conv_caps_types=(2, 2), decoder_hidden=()
)
CNN_CONFIG = tiny_toys("toys-cnn", 6, blocks=(Block(channels=8, kernel=5, pooled=True),), hidden=(16,))
MEASURED = PAIRS - 300  # the first so many of the test set
PLAN = Plan({"toys": {CAPSULES: CAPSULES_CONFIG, CNN: CNN_CONFIG}}, (0,), test_images=MEASURED)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    store(root, "toys")
    return root


@pytest.fixture(scope="module")
def runner(tmp_path_factory, root):
    folder = tmp_path_factory.mktemp("viewpoints")
    runner = Runner(folder / "out", folder / "networks", root, torch.device("cpu"))
    viewpoints.run(runner, PLAN)
    return runner


@pytest.fixture(scope="module")
def test_set(root) -> ToySplit:
    return load_split("toys", "test", root)


def rows_of(runner, along):
    return {row["method"]: row for row in runner.rows() if row["along"] == along}


def test_familiar_viewpoints_are_a_third_the_papers(test_set):
    azimuths = set(test_set.azimuth_degrees[are_familiar(test_set, "azimuth")].tolist())
    elevations = set(test_set.elevation_degrees[are_familiar(test_set, "elevation")].tolist())
    assert azimuths == {300, 320, 340, 0, 20, 40}
    assert elevations == {30, 35, 40}
    novel = set(test_set.azimuth_degrees[~are_familiar(test_set, "azimuth")].tolist())
    assert novel == set(range(60, 281, 20))


@pytest.mark.parametrize("along", ALONG)
def test_a_run_learns_from_familiar_viewpoints_and_is_measured_on_the_others(along, root, test_set):
    config = replace(with_familiar(CNN_CONFIG, along), data=replace(CNN_CONFIG.data, familiar=along))
    whole = replace(config, data=replace(config.data, training_images=None, resize_pixels=None))
    train, _ = training_batches(whole, root)
    trained_on = load_split("toys", "train", root)
    expected = trained_on.images[are_familiar(trained_on, along)]
    assert np.array_equal(train.images.pixels.numpy().transpose(0, 2, 3, 1), expected)
    novel = evaluation_batches(whole, root).images
    assert np.array_equal(
        novel.pixels.numpy().transpose(0, 2, 3, 1), test_set.images[~are_familiar(test_set, along)]
    )
    assert (len(train), len(novel)) == (FAMILIAR_PAIRS, PAIRS - FAMILIAR_PAIRS)


@pytest.mark.parametrize("along", ALONG)
def test_it_validates_on_familiar_viewpoints_of_other_toys_never_on_novel_ones(along, root, test_set):
    config = with_familiar(replace(CNN_CONFIG, data=replace(CNN_CONFIG.data, resize_pixels=None)), along)
    validation = training_batches(config, root)[1].images.pixels.flatten(1).numpy()
    familiar = (
        test_set.images[are_familiar(test_set, along)].transpose(0, 3, 1, 2).reshape(FAMILIAR_PAIRS, -1)
    )
    known = {picture.tobytes() for picture in familiar}
    assert len(validation) == 60
    assert len({picture.tobytes() for picture in validation}) == 60
    assert all(picture.tobytes() in known for picture in validation)


def test_networks_with_the_same_seed_are_matched_on_the_same_pictures(root):
    first, second = (
        training_batches(with_familiar(config, "azimuth"), root)[1]
        for config in (CAPSULES_CONFIG, CNN_CONFIG)
    )
    assert torch.equal(first.images.pixels, second.images.pixels)


@pytest.mark.parametrize("along", ALONG)
def test_errors_are_those_of_the_last_weights_on_the_first_test_toys_by_viewpoint(along, runner, test_set):
    for row in rows_of(runner, along).values():
        run = runner.networks / row["network"]
        config = checkpoint.read_config(run)
        model = checkpoint.load_model(run, checkpoint.newest_checkpoint(run), runner.device).eval()
        everything = evaluation_batches(
            replace(config, data=replace(config.data, familiar=None)), runner.root
        )
        [batch] = everything.fixed(PAIRS)
        with torch.no_grad():
            seen = model(batch.pixels)
        answers = (seen if row["method"] != CAPSULES else seen.activations).argmax(dim=1).numpy()
        wrong = (answers != test_set.labels)[:MEASURED]
        familiar = are_familiar(test_set, along)[:MEASURED]
        assert row["error_percent"]["familiar"] == pytest.approx(100 * wrong[familiar].mean())
        assert row["error_percent"]["novel"] == pytest.approx(100 * wrong[~familiar].mean())
        angles = test_set.azimuth_degrees if along == "azimuth" else test_set.elevation_degrees
        angles = angles[:MEASURED]
        at = {angle: 100 * wrong[angles == angle].mean() for angle in sorted(set(angles.tolist()))}
        assert dict(zip(row["degrees"], row["error_percent_at"], strict=True)) == pytest.approx(at)


@pytest.mark.parametrize("along", ALONG)
def test_capsules_are_asked_for_the_error_that_the_cnn_ends_with_on_familiar_viewpoints(along, runner):
    rows = rows_of(runner, along)
    log = (runner.networks / rows[CNN]["network"] / "log.jsonl").read_text().splitlines()
    validations = [row for row in map(json.loads, log) if row["kind"] == "validation"]
    assert rows[CNN]["validation_error_percent"] == validations[-1]["error_percent"]
    assert rows[CNN]["validation_images"] == 60
    assert rows[CNN]["asked_error_percent"] is None
    assert rows[CAPSULES]["asked_error_percent"] == rows[CNN]["validation_error_percent"]


def row_of(method, novel, seed=0, along="azimuth", **more):
    places = {"azimuth": list(range(0, 360, 20)), "elevation": list(range(30, 75, 5))}[along]
    return {
        "data": "toys",
        "along": along,
        "method": method,
        "seed": seed,
        "error_percent": {"familiar": 10.0, "novel": novel},
        "images": {"familiar": 100, "novel": 200},
        "degrees": places,
        "error_percent_at": [novel + 2 * (i % 3) for i, _ in enumerate(places)],
        "validation_error_percent": 10.0,
        "validation_images": 8100,
        "asked_error_percent": None,
        "epochs": 3.0,
        "parameters": 1234,
    } | more


def found_before(root, folder, cnn_error: float, capsules_error: float) -> Runner:
    """A runner that has measured networks which ended with these errors on familiar viewpoints."""
    runner = Runner(folder / "out", folder / "networks", root, torch.device("cpu"))
    for along in ALONG:
        cnn, capsules = with_familiar(CNN_CONFIG, along), with_familiar(CAPSULES_CONFIG, along)
        of_capsules = networks_of(stopped_at(capsules, cnn_error)) | {"kind": networks_of(capsules)["kind"]}
        for method, settings, error in (
            (CNN, networks_of(cnn), cnn_error),
            (CAPSULES, of_capsules, capsules_error),
        ):
            asked = cnn_error if method == CAPSULES else None
            row = row_of(method, 50.0, along=along, validation_error_percent=error, asked_error_percent=asked)
            key = {name: row.pop(name) for name in ("data", "along", "seed", "method")}
            runner.measure(key, settings | {"at_most": MEASURED, "weights": "last"}, lambda row=row: row)
    return runner


def test_a_cnn_that_capsules_cannot_reach_is_stopped_where_these_are_at_their_best(root, tmp_path):
    runner = found_before(root, tmp_path, 0.0, 79.0)
    viewpoints.run(runner, PLAN)
    for along in ALONG:
        stopped = rows_of(runner, along)[STOPPED_CNN]
        assert stopped["asked_error_percent"] == 79.0
        assert stopped["validation_error_percent"] <= 79.0
        assert stopped["epochs"] < CNN_CONFIG.optimizer.epochs


def test_capsules_that_are_as_good_are_compared_with_the_cnn_itself(root, tmp_path):
    runner = found_before(root, tmp_path, 10.0, 10.0)
    viewpoints.run(runner, PLAN)
    assert {row["method"] for row in runner.rows()} == {CNN, CAPSULES}
    assert not runner.networks.exists()


def test_a_run_that_goes_on_measures_nothing_twice(runner, tmp_path):
    again = replace(runner, networks=tmp_path / "no networks")
    before = runner.rows()
    viewpoints.run(again, PLAN)
    assert runner.rows() == before
    assert not again.networks.exists()


def test_the_report_says_how_many_errors_less_matched_capsules_make():
    text = viewpoints.report([row_of(CNN, 40.0), row_of(CAPSULES, 30.0)])
    assert (
        "familiar viewpoints make 25 % fewer errors than the CNN with 10.00 %, on 200 images of toys" in text
    )
    assert "| by azimuth, matrix capsules | 10.00 | 30.00 | 13.5 |  |" in text, "no difference to another set"


NOT_REACHED = [
    row_of(CNN, 20.0, validation_error_percent=5.0),
    row_of(CAPSULES, 30.0, asked_error_percent=5.0),
    row_of(STOPPED_CNN, 24.0, asked_error_percent=10.0),
]


def test_it_compares_with_the_cnn_that_was_stopped_where_capsules_never_were_as_good():
    text = viewpoints.report(NOT_REACHED)
    assert "make 25 % more errors than a stopped CNN with 10.00 %" in text
    assert "(1 pair of networks)" in text
    assert "errors than the CNN" not in text
    assert "| by azimuth, matrix capsules | 0 | 3 | 10.00 (not reached) | 5.00 | 1,234 |" in text


def test_before_that_cnn_is_trained_nothing_is_compared():
    assert "errors than" not in viewpoints.report(NOT_REACHED[:2])


def test_pairs_whose_capsules_were_stopped_and_pairs_whose_cnn_was_have_means_of_their_own():
    reached = [row_of(CNN, 40.0, seed=1), row_of(CAPSULES, 30.0, seed=1)]
    text = viewpoints.report([*NOT_REACHED, *reached])
    assert "make 25 % fewer errors than the CNN with 10.00 %" in text
    assert "make 25 % more errors than a stopped CNN with 10.00 %" in text


def test_a_cnn_that_was_stopped_for_capsules_of_another_recipe_has_no_part_in_it():
    better = row_of(CAPSULES, 18.0, asked_error_percent=5.0, validation_error_percent=4.9)
    text = viewpoints.report([NOT_REACHED[0], NOT_REACHED[2], better])
    assert "make 10 % fewer errors than the CNN with 10.00 %" in text
    assert "by azimuth, CNN, stopped" not in text


def test_nor_have_capsules_that_were_stopped_for_another_cnn():
    another = row_of(CNN, 20.0, validation_error_percent=6.0)
    assert "matrix capsules | " not in viewpoints.report([another, NOT_REACHED[1]])


def test_where_the_cnn_makes_no_errors_those_of_capsules_are_not_put_in_percent_of_them():
    text = viewpoints.report([row_of(CNN, 0.0), row_of(CAPSULES, 5.0)])
    assert "make 5.00 points more errors than the CNN" in text


def test_both_data_sets_are_reported_and_drawn_apart(tmp_path):
    of_both = [
        row_of(method, novel, data=data, along=along)
        for data, novel in (("smallnorb", 40.0), ("toys", 20.0))
        for along in ALONG
        for method in (CNN, CAPSULES)
    ]
    text = viewpoints.report(of_both)
    assert "| by azimuth, CNN | 10.00 | 40.00 | 20.0 | +20.00 |" in text
    assert "| by azimuth, CNN | 10.00 | 20.00 | 20.0 |  |" in text
    viewpoints.plot(of_both, tmp_path / "figure.png")
    assert areas(tmp_path / "figure.png", viewpoints.SHADE) >= 2 * len(ALONG) + 1


def test_the_report_says_what_networks_were_matched_on(runner):
    text = viewpoints.report(runner.rows())
    assert "toys is not smallnorb" in text
    matched = "As in the paper, networks are matched by their error on the test set's toys under\nfamiliar"
    assert f"{matched} viewpoints" in text
    assert "| matched on 60 images | seed |" in text


def test_the_figure_has_a_line_for_both_networks_and_shows_what_is_familiar(tmp_path):
    rows = [
        row_of(method, novel, along=along)
        for along in ALONG
        for method, novel in ((CNN, 40.0), (CAPSULES, 20.0))
    ]
    viewpoints.plot(rows, tmp_path / "figure.png")
    for color in (figure.OURS, figure.OTHER, viewpoints.SHADE):
        assert areas(tmp_path / "figure.png", color) >= len(ALONG) + 1  # and the legend


def test_the_figure_names_a_stopped_cnn_apart_from_the_one_that_was_trained_to_its_end(tmp_path, monkeypatch):
    named: list[str] = []
    monkeypatch.setattr(figure, "legend", lambda axis, entries, above: named.extend(entries))
    viewpoints.plot(NOT_REACHED, tmp_path / "figure.png")
    viewpoints.plot(NOT_REACHED[:2], tmp_path / "figure.png")
    assert named == [CAPSULES, CNN, STOPPED_CNN, "familiar", CAPSULES, CNN, "familiar"]


def test_all_of_the_papers_toys_are_measured_in_the_full_form():
    for data in viewpoints.FULL.networks.values():
        assert {config.data.validation_images for config in data.values()} == {8100}, "all familiar ones"
    assert viewpoints.FULL.test_images is None
    assert set(viewpoints.FULL.networks) == {"smallnorb", "toys"}
    assert viewpoints.FULL.networks["toys"][CNN].model.classes == CATEGORIES
