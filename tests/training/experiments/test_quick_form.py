"""The quick form of an experiment's networks, and what is said of it."""

from dataclasses import replace

import pytest

from training.config import load_preset, presets
from training.experiments import quick
from training.experiments.quick import QUICK_FORM, narrowed
from training.experiments.runner import describe

MATRIX = [name for name in presets() if load_preset(name).model.architecture == "matrix-capsnet"]


@pytest.mark.parametrize("preset", MATRIX)
def test_matrix_capsules_have_as_much_less_as_the_report_says(preset):
    full = load_preset(preset).model
    narrow = narrowed(load_preset(preset), 100, 2).model
    assert "of matrix capsules 1/4 of the channels and 1/2 of the types" in QUICK_FORM
    assert narrow.conv_channels == full.conv_channels // 4
    assert narrow.primary_types == full.primary_types // 2
    assert narrow.conv_caps_types == tuple(types // 2 for types in full.conv_caps_types)
    assert len(narrow.decoder_hidden) == len(full.decoder_hidden)
    assert narrow.routing_iterations == full.routing_iterations


@pytest.mark.parametrize("preset", presets())
def test_batches_rate_and_held_out_images_are_those_that_the_report_names(preset):
    config = narrowed(load_preset(preset), 100, 2)
    assert f"batches of {config.optimizer.batch_size} images" in QUICK_FORM
    assert f"learning rate of {config.optimizer.learning_rate}" in QUICK_FORM
    assert config.data.validation_images <= quick.VALIDATION_IMAGES


def test_a_setting_names_the_width_of_matrix_capsules_and_of_their_decoder():
    config = load_preset("matrix-smallnorb-small")
    routed = (
        ", density to the power 0.25 in the E-step, matrices of the identity and noise of 0.3 and 3 "
        "iterations of routing with lambda calibrated to logits with a deviation of 2, following each "
        "batch by 0.05 (class capsules: growing towards 0.02), all training"
    )
    assert f"with 64 channels, 8-16-16 types of matrix capsules{routed}" in describe(config)
    drawing = replace(config, model=replace(config.model, decoder_hidden=(256, 512)))
    assert f"8-16-16 types of matrix capsules, a decoder of 256-512{routed}" in describe(drawing)


def test_a_setting_names_the_size_of_the_pictures_and_viewpoints_that_alone_are_known():
    config = load_preset("smallnorb-cnn")
    known = replace(config, data=replace(config.data, familiar="azimuth"))
    held_out = "4860, of one toy of each category, held out"
    assert f"all training images of smallnorb but {held_out}, shown as 32x32 pixels" in describe(config)
    assert "of smallnorb under familiar viewpoints, by azimuth, shown as" in describe(known)


def test_a_setting_names_what_an_ablation_leaves_out():
    config = load_preset("matrix-smallnorb-small")
    papers = replace(config.model, density_exponent=1.0, matrix_noise=0.03)
    other = replace(config, model=replace(papers, vector_poses=True, coordinate_addition=False))
    other = replace(other, loss=replace(config.loss, classification="margin"))
    assert "types of matrix capsules, vector poses, no coordinates, margin loss and 3" in describe(other)
    official = replace(config, model=replace(config.model, official_routing=True))
    assert "official" in describe(official)


def test_the_warmup_is_named_and_quick_networks_need_none():
    config = load_preset("multimnist")
    assert ", rate 0.001, a warm-up of at most 1000 steps" in describe(config)
    assert "warm-up" not in describe(narrowed(config, 100, 2))


def test_a_stem_is_narrowed_and_named_as_the_channels_behind_it_are():
    config = load_preset("multimnist-small")
    assert "with 96-192 channels, 32 capsule types, 3 iterations" in describe(config)
    assert "with 12-24 channels, 8 capsule types, 3 iterations" in describe(narrowed(config, 100, 2))
