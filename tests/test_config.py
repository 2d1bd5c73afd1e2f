import dataclasses

import pytest
import torch

from training.config import (
    CapsNetConfig,
    OptimiserConfig,
    RunConfig,
    from_dict,
    load_preset,
    presets,
    to_dict,
)
from training.data.images import Images
from training.examples import examples
from training.loop import learning_rate
from training.models.build import build

# Sizes of the images as they are read, [C, H, W]; those of a folder are brought to the network's.
DIGITS, PHOTOGRAPHS, STEREO_PAIRS, OWN = (1, 28, 28), (3, 32, 32), (2, 96, 96), (1, 32, 32)
IMAGES = {"cifar10": PHOTOGRAPHS, "svhn": PHOTOGRAPHS, "smallnorb": STEREO_PAIRS, "images": OWN}


def test_the_mnist_preset_is_the_papers():
    config = load_preset("mnist")
    assert config.model == CapsNetConfig()
    assert (config.model.conv_channels, config.model.primary_types, config.model.primary_dim) == (256, 32, 8)
    assert config.loss.reconstruction_weight == 0.0005
    assert config.data.max_shift_pixels == 2
    assert config.data.validation_images == 5000
    assert config.optimiser.batch_size == 128


def test_the_short_preset_changes_only_the_schedule():
    paper, short = load_preset("mnist"), load_preset("mnist-short")
    assert dataclasses.replace(short, preset="mnist", optimiser=paper.optimiser) == paper


def test_the_official_preset_scales_the_margin_loss_as_half_a_mean_over_classes():
    config = load_preset("mnist-official")
    assert config.loss.margin_weight == pytest.approx(0.5 / config.model.classes)


@pytest.mark.parametrize("name", presets())
def test_every_presets_network_takes_the_images_that_it_is_shown(name):
    config = load_preset(name)
    classes = config.model.classes
    images = Images(
        torch.zeros(classes, *IMAGES.get(config.data.name, DIGITS), dtype=torch.uint8), torch.arange(classes)
    )
    shown = examples(config.data, classes, images)
    learned_from = shown.draw(torch.arange(classes), torch.Generator())
    [measured_on] = shown.fixed(classes)
    with torch.device("meta"):  # no memory
        build(config.model)
    expected = (classes, config.model.image_channels, config.model.image_size, config.model.image_size)
    assert learned_from.pixels.shape == measured_on.pixels.shape == expected


@pytest.mark.parametrize("name", presets())
def test_every_preset_survives_json(name):
    config = load_preset(name)
    assert from_dict(to_dict(config)) == config


def test_an_unknown_preset_is_an_error_that_lists_the_names():
    with pytest.raises(ValueError, match=r"no preset 'nmist'; there are .*drawn, .*mnist"):
        load_preset("nmist")


def test_an_unknown_key_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"model\.conv_chanels"):
        from_dict({"model": {"conv_chanels": 3}})


def test_a_value_out_of_range_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"model\.routing_iterations: .*greater than or equal to 1"):
        from_dict({"model": {"routing_iterations": 0}})


def test_configurations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1  # type: ignore[misc]


def test_the_rate_decays_exponentially_to_its_floor():
    config = OptimiserConfig(learning_rate=0.001, decay_rate=0.96, decay_steps=2000, min_learning_rate=1e-6)
    assert learning_rate(config, 0, 100) == 0.001
    assert learning_rate(config, 4000, 100) == pytest.approx(0.001 * 0.96**2)
    assert learning_rate(config, 10_000_000, 100) == 1e-6


def test_the_cooldown_falls_linearly_to_zero_over_the_last_epochs():
    config = OptimiserConfig(epochs=4, learning_rate=0.001, decay_rate=1.0, cooldown_epochs=2)
    assert learning_rate(config, 199, 100) == 0.001
    assert learning_rate(config, 300, 100) == pytest.approx(0.0005)
    assert learning_rate(config, 399, 100) == pytest.approx(0.001 / 200)
