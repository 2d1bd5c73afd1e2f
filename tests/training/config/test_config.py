import dataclasses
import re

import pytest
import torch

from training.config import (
    CapsNetConfig,
    DataConfig,
    LossConfig,
    MatrixCapsNetConfig,
    OptimizerConfig,
    from_dict,
    load_preset,
    presets,
    to_dict,
)
from training.data.batches import make_batches
from training.data.images import Images
from training.fit.schedule import learning_rate
from training.loss.losses import spread_margin
from training.models.build import build

# Sizes of the images as they are read, [C, H, W]; those of a folder are brought to the network's.
DIGITS, PHOTOGRAPHS, STEREO_PAIRS, OWN = (1, 28, 28), (3, 32, 32), (2, 96, 96), (1, 32, 32)
IMAGES = {
    "cifar10": PHOTOGRAPHS,
    "svhn": PHOTOGRAPHS,
    "smallnorb": STEREO_PAIRS,
    "toys": STEREO_PAIRS,
    "images": OWN,
}


def test_the_mnist_preset_is_the_papers():
    config = load_preset("mnist")
    assert config.model == CapsNetConfig()
    assert (config.model.conv_channels, config.model.primary_types, config.model.primary_dim) == (256, 32, 8)
    assert config.loss.reconstruction_weight == 0.0005
    assert config.data.max_shift_pixels == 2
    assert config.data.validation_images == 5000
    assert config.optimizer.batch_size == 128


def test_the_short_preset_changes_only_the_schedule():
    paper, short = load_preset("mnist"), load_preset("mnist-short")
    assert dataclasses.replace(short, preset="mnist", optimizer=paper.optimizer) == paper


def test_the_preset_with_learned_priors_changes_nothing_else():
    paper, learned = load_preset("mnist"), load_preset("mnist-learned-priors")
    model = dataclasses.replace(paper.model, learned_priors=True)
    assert dataclasses.replace(paper, preset="mnist-learned-priors", model=model) == learned


def test_the_official_preset_scales_the_margin_loss_as_half_a_mean_over_classes():
    config = load_preset("mnist-official")
    assert config.loss.margin_weight == pytest.approx(0.5 / config.model.classes)


def test_the_official_preset_differs_from_the_papers_in_flags_loss_and_length_alone():
    paper, official = load_preset("mnist"), load_preset("mnist-official")
    assert official == dataclasses.replace(
        paper,
        preset="mnist-official",
        model=CapsNetConfig(capsule_bias=True, primary_coupling=True, official_initialization=True),
        loss=LossConfig(margin_weight=0.05),
        optimizer=dataclasses.replace(paper.optimizer, epochs=700),
    )


def test_the_official_matrix_capsules_differ_from_the_papers_in_routing_loss_light_and_rate_alone():
    """The official code (capsule_em): a spread loss of the mean over 5 classes, 0.01 without a floor."""
    paper, official = load_preset("matrix-smallnorb"), load_preset("matrix-smallnorb-official")
    light = {"max_brightness": 0.0, "contrast": (1.0, 1.0), "light": "pixels"}
    assert official == dataclasses.replace(
        paper,
        preset="matrix-smallnorb-official",
        model=MatrixCapsNetConfig(architecture="matrix-capsnet", official_routing=True),
        loss=LossConfig("spread", margin_weight=0.2, spread_margins=(0.2, 0.99), spread_schedule="official"),
        data=dataclasses.replace(paper.data, **light),
        optimizer=dataclasses.replace(
            paper.optimizer, epochs=2300, learning_rate=0.01, min_learning_rate=0.0
        ),
    )
    steps = official.optimizer.epochs * (24300 - 4860) // 64
    assert spread_margin(official.loss, steps, steps) > 0.98


def test_multimnist_is_mnist_at_36_pixels_with_a_ten_times_longer_decay_and_a_warmup():
    """Sec. 6.2: "The only difference with our MNIST model is that we increased the period of the decay"."""
    paper, pairs = load_preset("mnist"), load_preset("multimnist")
    assert pairs.model == dataclasses.replace(paper.model, image_size=36)
    assert pairs.loss == paper.loss
    assert pairs.data == dataclasses.replace(paper.data, name="multimnist", max_shift_pixels=4)
    optimizer = dataclasses.replace(paper.optimizer, decay_steps=20_000, epochs=1000)
    assert pairs.optimizer == dataclasses.replace(optimizer, warmup_steps=1000)  # which the paper lacks


def test_affnist_is_mnist_on_digits_anywhere_in_40_pixels():
    """Sec. 5.2."""
    paper, affnist = load_preset("mnist"), load_preset("affnist")
    assert affnist.model == dataclasses.replace(paper.model, image_size=40)
    assert affnist.data == dataclasses.replace(paper.data, name="shifted-mnist", max_shift_pixels=0)
    stopped = dataclasses.replace(paper.optimizer, stop_at_error_percent=0.77, warmup_steps=1000)
    assert (affnist.loss, affnist.optimizer) == (paper.loss, stopped)


def test_cifar10_has_color_crops_64_types_and_none_of_the_above():
    """Sec. 7, and the official code's augmentation."""
    config = load_preset("cifar10")
    assert config.model == CapsNetConfig(
        image_size=24, image_channels=3, standardize_per_image=True, primary_types=64, none_of_the_above=True
    )
    assert config.data == DataConfig(
        name="cifar10",
        crop_pixels=24,
        max_shift_pixels=0,
        flip=True,
        max_brightness=0.25,
        contrast=(0.2, 1.8),
        light="standardized",
    )


def test_smallnorb_is_the_same_network_on_crops_of_stereo_pairs():
    """Sec. 7: "the exact same architecture", 48x48, and random 32x32 crops of these."""
    config = load_preset("smallnorb")
    assert config.model == CapsNetConfig(
        image_size=32, image_channels=2, standardize_per_image=True, classes=5
    )
    assert config.data == DataConfig(
        name="smallnorb",
        resize_pixels=48,
        crop_pixels=32,
        max_shift_pixels=0,
        max_brightness=0.25,
        contrast=(0.2, 1.8),
        light="standardized",
        validation_images=4860,
        held_out="toys",
    )


def test_svhn_has_the_papers_smaller_network():
    """Sec. 7: 64 channels, 16 types of 6-D primary capsules, 8-D class capsules."""
    config = load_preset("svhn")
    assert config.model == CapsNetConfig(
        image_size=32, image_channels=3, conv_channels=64, primary_types=16, primary_dim=6, class_dim=8
    )
    assert config.data == DataConfig(name="svhn", max_shift_pixels=0)


PAPERS = ("mnist", "mnist-official", "multimnist", "affnist", "cifar10", "smallnorb", "svhn")


@pytest.mark.parametrize("name", [*PAPERS, "fashion-mnist", "mnist-cnn", "multimnist-cnn", "affnist-cnn"])
def test_the_papers_schedule_is_adam_with_a_decaying_rate_and_a_warmup_where_none_learns_without(name):
    """Sec. 4 and the official code: no cooldown, no average of the weights; an early end in Sec. 5.2."""
    paper = OptimizerConfig(
        batch_size=128, learning_rate=0.001, decay_rate=0.96, decay_steps=2000, min_learning_rate=1e-6
    )
    found = load_preset(name).optimizer
    decay = 20_000 if name.startswith("multimnist") else 2000
    stop = 0.77 if name.startswith("affnist") else None
    warmup = 1000 if name in ("multimnist", "affnist", "smallnorb") else 0  # see test_first_steps.py
    expected = dataclasses.replace(paper, decay_steps=decay, stop_at_error_percent=stop, warmup_steps=warmup)
    assert found == dataclasses.replace(expected, epochs=found.epochs)


@pytest.mark.parametrize("name", [name for name in PAPERS if name != "mnist-official"])
def test_the_papers_loss_is_eq_4_and_a_little_reconstruction(name):
    """Sec. 3 and 4.1: m+ 0.9, m- 0.1, lambda 0.5, and 0.0005 of the summed squared error."""
    assert load_preset(name).loss == LossConfig(
        present_margin=0.9,
        absent_margin=0.1,
        absent_weight=0.5,
        margin_weight=1.0,
        reconstruction_weight=0.0005,
    )


@pytest.mark.parametrize("name", presets())
def test_every_presets_network_takes_the_images_that_it_is_shown(name):
    config = load_preset(name)
    classes = config.model.classes
    images = Images(
        torch.zeros(classes, *IMAGES.get(config.data.name, DIGITS), dtype=torch.uint8), torch.arange(classes)
    )
    shown = make_batches(config.data, classes, images)
    learned_from = shown.random(torch.arange(classes), torch.Generator())
    [measured_on] = shown.fixed(classes)
    with torch.device("meta"):  # no memory
        build(config.model)
    expected = (classes, config.model.image_channels, config.model.image_size, config.model.image_size)
    assert learned_from.pixels.shape == measured_on.pixels.shape == expected


@pytest.mark.parametrize("name", presets())
def test_no_preset_changes_light_that_its_network_would_undo(name):
    config = load_preset(name)
    changed = config.data.max_brightness or config.data.contrast != (1, 1)
    assert not changed or config.model.standardize_per_image == (config.data.light == "standardized")


@pytest.mark.parametrize("name", presets())
def test_every_preset_survives_json(name):
    config = load_preset(name)
    assert from_dict(to_dict(config)) == config


def test_a_name_that_is_like_no_preset_gets_the_list_alone():
    with pytest.raises(ValueError, match=r"no preset 'zzzzz'; there are affnist, "):
        load_preset("zzzzz")


def test_a_file_of_ones_own_is_a_preset_by_its_path(tmp_path):
    (tmp_path / "mine.toml").write_text("seed = 3\n[optimizer]\nepochs = 7\n")
    config = load_preset(str(tmp_path / "mine.toml"))
    assert (config.preset, config.seed, config.optimizer.epochs) == ("mine", 3, 7)
    with pytest.raises(FileNotFoundError, match=r"other\.toml"):
        load_preset(str(tmp_path / "other.toml"))
    with pytest.raises(ValueError, match=r"mnist is a preset of the package; give the file another name"):
        load_preset(str(tmp_path / "mnist.toml"))


def test_a_preset_may_begin_with_the_mark_that_windows_writes(tmp_path):
    (tmp_path / "mine.toml").write_text("seed = 3\n", encoding="utf-8-sig")
    assert load_preset(str(tmp_path / "mine.toml")).seed == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[oops", "preset mine: Expected"),
        (
            "[optimizer]\nepochz = 3",
            "preset mine: configuration: optimizer.epochz: there is no such setting; did you mean epochs?",
        ),
        ("[modle]\nkernel = 3", "configuration: modle: there is no such setting; did you mean model?"),
        ("[optimizer]\nrouting_iterations = 3", "routing_iterations: it is not a setting of this table"),
        ("zzzzz = 3", "preset mine: configuration: zzzzz: there is no such setting"),
        ("[model]\nconv_channels = 99999999999999999999", "model.conv_channels: Input should be less than"),
        (
            "[model]\nrouting_iterations = 101",
            "model.routing_iterations: Input should be less than or equal to 100",
        ),
        ("[optimizer]\nbatch_size = 99999999999999999999", "optimizer.batch_size: Input should be less"),
        (
            "[optimizer]\nlearning_rate = 0.01\nmin_learning_rate = 0.1",
            "min_learning_rate 0.1 is above learning_rate",
        ),
        ("# \udcff", "preset mine: 'utf-8' codec can't decode"),
        ('preset = "other"', "preset mine: its name is that of the file; leave the key preset out"),
        ("[optimizer]\nepochs = true", "optimizer.epochs: Input should be a valid integer"),
        ('[optimizer]\nlearning_rate = "0.1"', "optimizer.learning_rate: Input should be a valid number"),
        ("seed = 1979-05-27", "seed: Input should be a valid integer"),
        ("# to be written", "preset mine: the file is empty"),
        ("seed = 4294967296", "seed: Input should be less than 4294967296"),
        ("a = " + "[" * 5000, "preset mine: its values are nested too deeply"),
        ("[started_from]\nbundle = 'capsnet-mnist/4'", "started_from is set by --start-from; leave it out"),
        ("[data]\nclass_names = ['a', 'b']", "data.class_names is set by --images; leave it out"),
        ("[data]\nname = 'images'\nfolder = 'pets'", "data.folder is set by --images; leave it out"),
    ],
)
def test_what_is_wrong_in_a_preset_is_said_with_its_name(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=re.escape(message)):
        load_preset(str(tmp_path / "mine.toml"))


def test_a_misspelt_preset_is_an_error_that_names_the_nearest():
    with pytest.raises(ValueError, match=r"no preset 'nmist'; did you mean mnist\? There are .*drawn"):
        load_preset("nmist")


def test_an_unknown_key_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"model\.conv_chanels"):
        from_dict({"model": {"conv_chanels": 3}})


def test_a_value_out_of_range_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"model\.routing_iterations: .*greater than or equal to 1"):
        from_dict({"model": {"routing_iterations": 0}})


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("multimnist", "resize_pixels", 32),
        ("multimnist", "crop_pixels", 24),
        ("multimnist", "flip", True),
        ("multimnist", "max_brightness", 0.1),
        ("multimnist", "contrast", [0.5, 1.5]),
        ("multimnist", "blank_fraction", 0.1),
        ("multimnist", "warp", {"shear": 0.1}),
        ("multimnist", "scribble_fraction", 0.1),
        ("shifted-mnist", "warp", {"shear": 0.1}),
        ("shifted-mnist", "scribble_fraction", 0.1),
        ("shifted-mnist", "resize_pixels", 32),
        ("shifted-mnist", "crop_pixels", 24),
    ],
)
def test_an_option_that_would_have_no_effect_is_an_error_that_names_it(name, option, value):
    with pytest.raises(ValueError, match=rf"data: .*{option}: has no effect on {name}"):
        from_dict({"data": {"name": name, option: value}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"decoder_hidden": []}}, r"optimizer\.trained_part: there is no decoder"),
        (
            {"optimizer": {"patience_epochs": 3}},
            r"optimizer\.patience_epochs: a decoder alone changes no answer",
        ),
    ],
)
def test_a_decoder_alone_must_be_there_and_has_no_error_to_be_patient_with(values, message):
    optimizer = values.get("optimizer", {}) | {"trained_part": "decoder"}
    with pytest.raises(ValueError, match=message):
        from_dict(values | {"optimizer": optimizer})


@pytest.mark.parametrize("loss", ["spread", "cross-entropy"])
def test_a_loss_for_one_object_is_refused_where_an_image_shows_two(loss):
    values = {"loss": {"classification": loss}, "data": {"name": "multimnist"}}
    with pytest.raises(
        ValueError, match=rf'{loss} is for images of one object, multimnist shows 2; take "margin"'
    ):
        from_dict(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": {"spread_margins": [0.9, 0.2]}}, "spread_margins: they grow, got 0.9 and then 0.2"),
        (
            {"loss": {"classification": "cross-entropy"}, "data": {"blank_fraction": 0.1}},
            "blank_fraction: of an image without an object there is no cross-entropy",
        ),
        (
            {"loss": {"classification": "cross-entropy"}, "data": {"scribble_fraction": 0.1}},
            "scribble_fraction: of an image without an object there is no cross-entropy loss",
        ),
        (
            {"loss": {"classification": "spread"}, "data": {"scribble_fraction": 0.1}},
            "scribble_fraction: of an image without an object there is no spread loss",
        ),
        (
            {"data": {"contrast": [1.8, 0.2]}},
            "data.contrast: the smallest factor comes first, got 1.8 and 0.2",
        ),
        (
            {"model": [{}]},
            "model: expected a table whose architecture is one of 'capsnet', 'matrix-capsnet', ",
        ),
        (
            {"data": {"warp": {"scales": [1.2, 0.8]}}},
            "scales: the smallest factor comes first, got 1.2 and 0.8",
        ),
        (
            {
                "model": {
                    "architecture": "matrix-capsnet",
                    "official_routing": True,
                    "mixing_proportions": True,
                }
            },
            "official_routing has activations by Eq. 2",
        ),
        (
            {
                "model": {
                    "architecture": "matrix-capsnet",
                    "routing_iterations": 1,
                    "mixing_proportions": True,
                }
            },
            "mixing_proportions: in one iteration of routing all are equal; take 2 or more",
        ),
    ],
)
def test_what_cannot_go_together_is_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_dict(values)


def test_viewpoints_are_refused_where_nothing_is_known_of_them():
    with pytest.raises(ValueError, match="familiar: mnist does not say from where its pictures were taken"):
        from_dict({"data": {"familiar": "azimuth"}})


@pytest.mark.parametrize(("name", "channels", "size"), [("mnist", 1, 28), ("cifar10", 3, 32)])
def test_matrix_capsules_for_other_sets_have_the_architecture_for_smallnorb(name, channels, size):
    """Sec. 5, Hinton et al. 2018: the same, but for 256 channels of the convolution on CIFAR-10."""
    paper, other = load_preset("matrix-smallnorb"), load_preset(f"matrix-{name}")
    expected = dataclasses.replace(paper.model, image_size=size, image_channels=channels, classes=10)
    if name == "cifar10":
        expected = dataclasses.replace(expected, conv_channels=256)
    assert (other.model, other.loss) == (expected, paper.loss)
    assert other.optimizer == dataclasses.replace(paper.optimizer, epochs=other.optimizer.epochs)


def test_the_rate_decays_exponentially_to_its_floor():
    config = OptimizerConfig(learning_rate=0.001, decay_rate=0.96, decay_steps=2000, min_learning_rate=1e-6)
    assert learning_rate(config, 0, 100) == 0.001
    assert learning_rate(config, 4000, 100) == pytest.approx(0.001 * 0.96**2)
    assert learning_rate(config, 10_000_000, 100) == 1e-6


def test_the_cooldown_falls_linearly_to_zero_over_the_last_epochs():
    config = OptimizerConfig(epochs=4, learning_rate=0.001, decay_rate=1.0, cooldown_epochs=2)
    assert learning_rate(config, 199, 100) == 0.001
    assert learning_rate(config, 300, 100) == pytest.approx(0.0005)
    assert learning_rate(config, 399, 100) == pytest.approx(0.001 / 200)


def test_the_rate_rises_linearly_over_the_warmup():
    config = OptimizerConfig(learning_rate=0.001, decay_rate=1.0, warmup_steps=4)
    assert [learning_rate(config, step, 100) for step in range(5)] == pytest.approx(
        [0.00025, 0.0005, 0.00075, 0.001, 0.001]
    )


def test_the_warmup_is_at_most_a_fifth_of_the_run_and_goes_with_a_cooldown():
    config = OptimizerConfig(
        epochs=1, learning_rate=0.001, decay_rate=1.0, warmup_steps=1000, cooldown_epochs=1
    )
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[:2] == pytest.approx([0.001 / 20, 0.001 * 2 / 20 * 0.99])
    assert max(rates) == rates[19]
    assert rates[19] == pytest.approx(0.001 * 0.81)


def test_a_run_shorter_than_its_cooldown_begins_with_the_whole_rate():
    config = OptimizerConfig(epochs=2, learning_rate=0.001, decay_rate=1.0, cooldown_epochs=20)
    assert learning_rate(config, 0, 100) == 0.001
    assert learning_rate(config, 100, 100) == pytest.approx(0.0005)


@pytest.mark.parametrize("values", [[], None, 3])
def test_a_configuration_that_is_no_object_is_an_error_of_one_line(values):
    with pytest.raises(ValueError, match="configuration: as a whole"):
        from_dict(values)
