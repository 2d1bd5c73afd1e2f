"""The first steps of large networks, which decide whether they learn at all."""

import pytest
import torch

from training.config import load_preset
from training.data.batches import Batch
from training.fit.schedule import learning_rate
from training.fit.step import TrainStep
from training.models.build import build

IMAGES, STEPS = 8, 3
FAR_TOO_LONG = 0.9  # mean length of class capsules, with hardly a gradient left


def mean_length_after(preset: str, *, warmup: bool) -> float:
    """Of the class capsules of images, after a few steps on blurred noise."""
    config = load_preset(preset)
    shape = (IMAGES, config.model.image_channels, config.model.image_size, config.model.image_size)
    pixels = torch.nn.functional.avg_pool2d(
        torch.rand(shape, generator=torch.Generator().manual_seed(0)), 3, stride=1, padding=1
    )
    targets = torch.nn.functional.one_hot(torch.arange(IMAGES) % config.model.classes, config.model.classes)
    torch.manual_seed(0)
    network = build(config.model)
    step = TrainStep(network, config.loss, config.optimizer.learning_rate)
    for number in range(STEPS):
        rate = learning_rate(config.optimizer, number, 400) if warmup else config.optimizer.learning_rate
        step(Batch.of(pixels, targets.float()), rate)
    with torch.no_grad():
        return network(pixels).norm(dim=-1).mean().item()


@pytest.mark.parametrize("preset", ["multimnist", "affnist", "smallnorb"])
def test_thousands_of_primary_capsules_need_the_warmup(preset):
    assert mean_length_after(preset, warmup=True) < 0.7
    assert mean_length_after(preset, warmup=False) > FAR_TOO_LONG
