"""Answers to several crops of an image."""

from dataclasses import replace

import pytest
import torch

from training.config import DataConfig, load_preset
from training.data.batches import SingleObjects
from training.data.images import Images
from training.evaluate.evaluation import evaluate
from training.evaluate.multi_crop import window_probabilities, windows
from training.models.build import build

PRESETS = ["matrix-smallnorb-small", "smallnorb-cnn", "smallnorb"]


def shown(count: int = 30) -> SingleObjects:
    """Images of 48x48 pixels, shown as crops of 32x32."""
    pixels = torch.randint(256, (count, 2, 48, 48), dtype=torch.uint8)
    return SingleObjects(
        DataConfig(name="toys", crop_pixels=32, max_shift_pixels=0),
        5,
        Images(pixels, torch.arange(count) % 5),
    )


def network(preset: str):
    config = load_preset(preset)
    narrow = {"decoder_hidden": ()} if preset != "smallnorb-cnn" else {}
    return build(replace(config.model, **narrow)).eval(), config


def test_windows_are_the_central_one_and_12_on_the_diagonals_of_1_2_and_3_pixels():
    found = windows(48, 32)
    assert len(set(found)) == 13
    assert found[0] == (8, 8)
    away = {(row - 8, column - 8) for row, column in found[1:]}
    assert away == {(d * v, d * h) for d in (1, 2, 3) for v in (-1, 1) for h in (-1, 1)}


@pytest.mark.parametrize("size", [38, 39, 40])
def test_every_window_lies_within_the_image(size):
    assert all(0 <= corner <= size - 32 for place in windows(size, 32) for corner in place)


def test_an_image_without_room_for_them_is_refused():
    with pytest.raises(ValueError, match="crops of 32x32 of 37x37 pixels have no room to move by 3 pixels"):
        windows(37, 32)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_first_window_gives_the_error_of_a_plain_evaluation(preset):
    (model, config), some = network(preset), shown()
    found = window_probabilities(model, some)
    assert found.shape == (13, len(some), 5)
    wrong = int((found[0].argmax(dim=1) != some.images.labels).sum())
    assert wrong == evaluate(model, some, config.loss).errors


@pytest.mark.parametrize("preset", PRESETS)
def test_each_window_is_what_the_network_makes_of_that_part_of_the_image(preset):
    (model, _), some = network(preset), shown(4)
    found = window_probabilities(model, some)
    for answers, (top, left) in zip(found, windows(48, 32), strict=True):
        part = some.images.pixels[:, :, top : top + 32, left : left + 32]
        alone = SingleObjects(some.config, 5, Images(part, some.images.labels))
        [batch] = alone.fixed(4)
        with torch.no_grad():
            seen = model(batch.pixels)
        if preset == "smallnorb-cnn":
            expected = seen.softmax(dim=1)
        else:
            expected = seen.norm(dim=2) if preset == "smallnorb" else seen.activations
        torch.testing.assert_close(answers, expected, atol=1e-5, rtol=1e-4)
