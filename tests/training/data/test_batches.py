from dataclasses import astuple, replace

import pytest
import torch

from training.config import (
    Block,
    CapsNetConfig,
    CnnConfig,
    DataConfig,
    LossConfig,
    MatrixCapsNetConfig,
    RunConfig,
    WarpConfig,
    from_dict,
    load_preset,
)
from training.data.batches import Batch, make_batches
from training.data.images import Images
from training.data.run_images import evaluation_batches, training_batches
from training.loss.objective import compute_losses
from training.models.build import build
from training.models.convolution import Convolution

CLASSES = 4


def images(count=40, channels=1, size=28):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(1, 256, (count, channels, size, size), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count) % CLASSES)


def shown(name="mnist", some=None, **options):
    return make_batches(DataConfig(name=name, **options), CLASSES, some or images())


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def all_fixed(some, batch=16, versions=1):
    return torch.cat([each.pixels for each in some.fixed(batch, versions)])


def test_training_images_are_shifted_and_test_images_are_not():
    some = shown(max_shift_pixels=2)
    originals = some.images.pixels.float() / 255
    drawn = some.random(torch.arange(40), generator())
    unmoved = (drawn.pixels == originals).flatten(1).all(dim=1)
    assert unmoved.sum() < 10, "one in 25 is moved by nothing"
    assert torch.equal(all_fixed(some), originals)


def test_the_same_generator_draws_the_same_batch():
    for some in (shown(), shown("multimnist"), shown("shifted-mnist")):
        first, second = (some.random(torch.arange(8), generator()) for _ in range(2))
        assert torch.equal(first.pixels, second.pixels)


def test_one_object_is_what_the_image_shows():
    batch = shown().random(torch.arange(8), generator())
    assert torch.equal(batch.objects.squeeze(1), batch.pixels)
    assert torch.equal(batch.masks.squeeze(1), batch.targets)
    assert torch.equal(batch.targets.argmax(dim=1), torch.arange(8) % CLASSES)


def test_two_objects_lie_over_each_other_and_each_is_its_own_target():
    batch = shown("multimnist", max_shift_pixels=4).random(torch.arange(8), generator())
    assert batch.pixels.shape == (8, 1, 36, 36)
    torch.testing.assert_close(batch.objects.sum(dim=1).clamp(max=1), batch.pixels)
    assert torch.equal(batch.masks.sum(dim=1), batch.targets)
    assert (batch.targets.sum(dim=1) == 2).all()


def test_a_training_crop_lies_anywhere_and_the_test_crop_in_the_middle():
    some = shown(max_shift_pixels=0, crop_pixels=24)
    originals = some.images.pixels.float() / 255
    assert torch.equal(all_fixed(some), originals[:, :, 2:26, 2:26])
    drawn = some.random(torch.arange(40), generator()).pixels
    middle = (drawn == originals[:, :, 2:26, 2:26]).flatten(1).all(dim=1)
    assert drawn.shape == (40, 1, 24, 24)
    assert middle.sum() < 10, "one in 25 is the central one"


def test_half_of_the_training_images_are_mirrored():
    some = shown(max_shift_pixels=0, flip=True)
    originals = some.images.pixels.float() / 255
    drawn = some.random(torch.arange(40), generator()).pixels
    mirrored = (drawn == originals.flip(3)).flatten(1).all(dim=1)
    as_they_are = (drawn == originals).flatten(1).all(dim=1)
    assert (mirrored ^ as_they_are).all()
    assert 8 < mirrored.sum() < 32


@pytest.mark.parametrize("options", [{"max_brightness": 0.25}, {"contrast": (0.2, 1.8)}])
def test_brightness_and_contrast_change_training_images_only(options):
    some = shown(max_shift_pixels=0, **options)
    originals = some.images.pixels.float() / 255
    drawn = some.random(torch.arange(40), generator()).pixels
    assert (drawn != originals).flatten(1).any(dim=1).all()
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert torch.equal(all_fixed(some), originals)


LIGHT = {"max_brightness": 0.25, "contrast": (0.2, 1.8)}


@pytest.mark.parametrize("light", ["pixels", "standardized"])
def test_what_is_to_be_drawn_has_the_light_that_it_was_taken_in(light):
    some = shown(max_shift_pixels=0, **LIGHT, light=light)
    batch = some.random(torch.arange(40), generator())
    assert torch.equal(batch.objects.squeeze(1), some.images.pixels.float() / 255)
    assert (light == "standardized") == torch.equal(batch.pixels, batch.objects.squeeze(1))


def test_blank_images_are_empty_and_hold_no_class():
    some = shown(some=images(1000), max_shift_pixels=0, blank_fraction=0.25)
    batch = some.random(torch.arange(1000), generator())
    is_blank = batch.targets.sum(dim=1) == 0
    assert 200 < int(is_blank.sum()) < 300
    assert (batch.pixels[is_blank] == 0).all()
    assert torch.equal(batch.pixels[~is_blank], some.images.pixels[~is_blank].float() / 255)
    assert (batch.targets[~is_blank].sum(dim=1) == 1).all()
    assert nothing_is_drawn_of(batch, is_blank)


def test_scribbles_take_the_place_of_images_and_hold_no_class():
    some = shown(some=images(1000), max_shift_pixels=0, scribble_fraction=0.25)
    batch = some.random(torch.arange(1000), generator())
    is_scribble = batch.targets.sum(dim=1) == 0
    assert 200 < int(is_scribble.sum()) < 300
    shapes = batch.pixels[is_scribble].flatten(1)
    assert len(shapes.unique(dim=0)) > 150, "there are many of them"
    assert (shapes.sum(dim=1) > 0).all()
    assert torch.equal(batch.pixels[~is_scribble], some.images.pixels[~is_scribble].float() / 255)
    assert nothing_is_drawn_of(batch, is_scribble)


def nothing_is_drawn_of(batch, some):
    return not batch.objects[some].any() and not batch.masks[some].any()


def test_training_images_are_bent_and_test_images_are_not():
    some = shown(max_shift_pixels=0, warp=WarpConfig(rotation_degrees=20))
    originals = some.images.pixels.float() / 255
    batch = some.random(torch.arange(40), generator())
    assert (batch.pixels != originals).flatten(1).any(dim=1).all()
    assert torch.equal(batch.objects.squeeze(1), batch.pixels), "what is drawn is bent, too"
    assert torch.equal(all_fixed(some), originals)


NETWORKS = (
    CapsNetConfig(conv_channels=2, primary_types=1, classes=CLASSES, class_dim=2, standardize_per_image=True),
    MatrixCapsNetConfig(
        "matrix-capsnet",
        image_size=28,
        image_channels=1,
        conv_channels=2,
        primary_types=1,
        conv_caps_types=(1, 1),
        classes=CLASSES,
    ),
    CnnConfig("cnn", classes=CLASSES, blocks=(Block(channels=2, kernel=3),), standardize_per_image=True),
)


class Seen(Exception):  # noqa: N818  # no error
    """What a first convolution is shown."""


@pytest.mark.parametrize("config", NETWORKS, ids=lambda config: config.architecture)
def test_a_network_that_standardizes_sees_the_light_that_was_changed(config):
    """By the order of Sec. 5, Hinton et al. 2018: the other way round it would see 0.006 deviations of it."""
    batch = shown(max_shift_pixels=0, **LIGHT, light="standardized").random(torch.arange(40), generator())
    network = build(config)

    def stop(_, inputs):
        raise Seen(inputs[0])

    first = next(layer for layer in network.modules() if isinstance(layer, Convolution))
    first.register_forward_pre_hook(stop)
    with pytest.raises(Seen) as seen:
        compute_losses(network, batch, LossConfig())
    deviations, means = torch.std_mean(seen.value.args[0], dim=(1, 2, 3), correction=0)
    assert (means.abs() < 0.25).all()
    assert (deviations > 0.19).all()
    assert (deviations < 1.81).all()
    assert means.std() > 0.1
    assert deviations.std() > 0.3


VARIETY = {
    "mnist": {
        "max_shift_pixels": 2,
        "blank_fraction": 0.3,
        "scribble_fraction": 0.3,
        "crop_pixels": 24,
        "flip": True,
        "warp": WarpConfig(20, (0.8, 1.2), 0.2, 1.0, 0.5),
        **LIGHT,
    },
    "images": {"light": "standardized", **LIGHT},
    "multimnist": {"max_shift_pixels": 4},
    "shifted-mnist": {"max_shift_pixels": 1},
}


@pytest.mark.parametrize("name", VARIETY)
def test_a_process_makes_its_part_of_the_batch_as_one_process_would(name):
    some = shown(name, **VARIETY[name])
    whole = some.random(torch.arange(24), generator())
    part = some.random(torch.arange(24), generator(), slice(8, 16))
    for found, expected in zip(astuple(part), astuple(whole[8:16]), strict=True):
        assert found is expected is None or torch.equal(found, expected)


@pytest.mark.parametrize("name", VARIETY)
def test_a_process_does_not_touch_the_images_of_the_others(name):
    index = torch.arange(24)
    index[8:] = 10**6  # which there are not
    assert len(shown(name, **VARIETY[name]).random(index, generator(), slice(0, 8))) == 8


def test_pictures_are_resized_once_for_all():
    some = shown(some=images(8, channels=2, size=96), resize_pixels=48, crop_pixels=32, max_shift_pixels=0)
    assert some.images.pixels.shape == (8, 2, 48, 48)
    assert all_fixed(some).shape == (8, 2, 32, 32)


def test_shifted_digits_lie_anywhere_in_the_frame_and_test_digits_always_in_the_same_place():
    some = shown("shifted-mnist", max_shift_pixels=0)
    first, second = all_fixed(some, 16), all_fixed(some, 7)
    assert first.shape == (40, 1, 40, 40)
    assert torch.equal(first, second)
    once, again = (some.random(torch.zeros(1, dtype=torch.int64), generator(seed)).pixels for seed in (1, 2))
    assert not torch.equal(once, again)


@pytest.mark.parametrize("name", ["multimnist", "shifted-mnist"])
def test_each_version_of_the_test_images_is_another(name):
    some = shown(name, max_shift_pixels=0 if name == "shifted-mnist" else 4)
    found = all_fixed(some, versions=2)
    assert len(found) == 80
    assert not torch.equal(found[:40], found[40:])
    assert torch.equal(found[:40], all_fixed(some))


def test_fewer_training_images_leave_the_held_out_ones_as_they_are(drawn_mnist_root):
    config = RunConfig(data=DataConfig(validation_images=100))
    few = replace(config, data=replace(config.data, training_images=50))
    train, validation = training_batches(config, drawn_mnist_root)
    some, same = training_batches(few, drawn_mnist_root)
    assert (len(train), len(some), len(validation)) == (500, 50, 100)
    assert torch.equal(some.images.pixels, train.images.pixels[:50])
    assert torch.equal(same.images.pixels, validation.images.pixels)
    assert len(evaluation_batches(config, drawn_mnist_root)) == 200


@pytest.mark.parametrize("name", ["mnist", "multimnist", "affnist"])
def test_a_presets_images_have_the_size_that_its_network_takes(name, drawn_mnist_root):
    config = load_preset(name)
    config = replace(config, data=replace(config.data, validation_images=100))
    train, _ = training_batches(config, drawn_mnist_root)
    size = config.model.image_size
    assert train.random(torch.arange(4), generator()).pixels.shape == (4, 1, size, size)
    assert next(evaluation_batches(config, drawn_mnist_root).fixed(4)).pixels.shape == (4, 1, size, size)


def test_a_part_of_a_batch_is_a_batch():
    batch = shown("multimnist").random(torch.arange(8), generator())
    part = batch[2:5]
    assert isinstance(part, Batch)
    assert len(part) == 3
    assert torch.equal(part.objects, batch.objects[2:5])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"model": {"classes": 5}}, "model.classes: the network has 5, the data set mnist 10"),
        ({"model": {"image_size": 36}}, "model.image_size: the network takes 36 pixels, but is shown 28"),
        (
            {"model": {"image_channels": 3}},
            "image_channels: the network takes 3, images of mnist have 1",
        ),
        ({"data": {"crop_pixels": 40}}, "data.crop_pixels: no crop of 40 pixels fits into images of 28"),
        ({"data": {"crop_pixels": 24}}, "the network takes 28 pixels, but is shown 24"),
        ({"data": {"name": "multimnist"}}, "the network takes 28 pixels, but is shown 32"),
    ],
)
def test_images_that_the_network_does_not_take_are_refused(drawn_mnist_root, values, told):
    values = {**values, "data": {"validation_images": 0, **values.get("data", {})}}
    with pytest.raises(ValueError, match=told):
        training_batches(from_dict(values), drawn_mnist_root)
