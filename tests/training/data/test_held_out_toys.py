"""Toys that are validated on are not trained on, as those that are measured on are not."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.smallnorb_files import CATEGORIES, PAIRS, store
from training.config import DataConfig, RunConfig, load_preset
from training.data.datasets import load_split
from training.data.readers.smallnorb import SIZE, ToySplit
from training.data.run_images import training_batches
from training.runs.run_config import held_out_by

HELD_OUT = 5 * 32  # there are one or two pairs more


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    store(root, "toys")
    return root


@pytest.fixture(scope="module")
def toy_of(root) -> dict[bytes, tuple[int, int]]:
    """Category and instance of each pair, by its pixels."""
    split = load_split("toys", "train", root)
    assert isinstance(split, ToySplit)
    pixels = split.images.transpose(0, 3, 1, 2)
    return {
        np.ascontiguousarray(pair).tobytes(): (category, toy)
        for pair, category, toy in zip(pixels, split.labels.tolist(), split.instance.tolist(), strict=True)
    }


def holding_out(count, seed=0, **changes) -> RunConfig:
    data = DataConfig(name="toys", held_out="toys", validation_images=count, **changes)
    preset = load_preset("toys-cnn")
    return replace(preset, model=replace(preset.model, image_size=SIZE), data=data, seed=seed)


def toys(some, toy_of) -> set[tuple[int, int]]:
    return {toy_of[pair.numpy().tobytes()] for pair in some.images.pixels}


@pytest.mark.parametrize("seed", [0, 1])
def test_one_toy_of_each_category_is_validated_on_and_never_trained_on(root, toy_of, seed):
    train, validation = training_batches(holding_out(HELD_OUT, seed), root)
    held_out, trained_on = toys(validation, toy_of), toys(train, toy_of)
    assert sorted(category for category, _ in held_out) == list(range(CATEGORIES))
    assert held_out | trained_on == set(toy_of.values())
    assert not held_out & trained_on
    assert len(validation) == HELD_OUT
    assert len(train) == sum(toy not in held_out for toy in toy_of.values())


def test_which_toys_are_held_out_depends_on_the_seed_alone(root, toy_of):
    found = [toys(training_batches(holding_out(HELD_OUT, seed), root)[1], toy_of) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_fewer_validation_images_are_some_of_all_held_out_toys_and_leave_the_training_images_as_they_are(
    root, toy_of
):
    few, all_ = (training_batches(holding_out(count), root) for count in (60, HELD_OUT))
    assert len(few[1]) == 60
    assert toys(few[1], toy_of) == toys(all_[1], toy_of)
    assert few[0].images.pixels.equal(all_[0].images.pixels)


def test_the_first_training_images_are_of_all_toys(root, toy_of):
    train, _ = training_batches(holding_out(60, training_images=200), root)
    assert len(toys(train, toy_of)) == 4 * CATEGORIES


def test_more_validation_images_than_the_toys_have_are_refused(root):
    with pytest.raises(ValueError, match=r"200 .* asked for; the toys held out have 16\d pairs"):
        training_batches(holding_out(200), root)


def test_without_validation_images_all_toys_are_trained_on(root):
    train, validation = training_batches(holding_out(0), root)
    assert (len(train), validation) == (PAIRS, None)


def test_a_set_without_toys_is_refused():
    with pytest.raises(ValueError, match="held_out: mnist does not say which toy its pictures show"):
        DataConfig(held_out="toys")


def test_a_run_that_held_out_pictures_did_not_hold_out_toys():
    pictures = replace(holding_out(60), data=replace(holding_out(60).data, held_out="images"))
    assert held_out_by(pictures) != held_out_by(holding_out(60))


@pytest.mark.parametrize(
    "name",
    [
        "matrix-toys",
        "toys",
        "toys-cnn",
        "smallnorb",
        "smallnorb-cnn",
        "matrix-smallnorb",
        "matrix-smallnorb-official",
        "matrix-smallnorb-small",
    ],
)
def test_presets_for_stereo_pairs_hold_out_all_pairs_of_a_toy_of_each_category(name):
    data = load_preset(name).data
    assert (data.held_out, data.validation_images) == ("toys", 24_300 // 5)
