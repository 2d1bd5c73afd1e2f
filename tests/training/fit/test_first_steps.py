"""The first steps of large networks, which decide whether they learn at all."""

from dataclasses import replace

import pytest
import torch

from training.config import load_preset
from training.data.batches import Batch
from training.fit.schedule import learning_rate
from training.fit.step import TrainStep
from training.models.build import build

IMAGES = 5


def losses(preset: str, steps: int, warmup: int) -> tuple[float, float]:
    """Margin loss of the first and of the last step on a few images of blurred noise."""
    config = load_preset(preset)
    network = replace(config.model, decoder_hidden=())
    shape = (IMAGES, network.image_channels, network.image_size, network.image_size)
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    pixels = torch.nn.functional.avg_pool2d(noise, 3, stride=1, padding=1)
    targets = torch.nn.functional.one_hot(torch.arange(IMAGES) % network.classes, network.classes).float()
    optimizer = replace(config.optimizer, warmup_steps=warmup)
    torch.manual_seed(0)
    step = TrainStep(build(network), config.loss, optimizer.learning_rate)
    found = [step(Batch.of(pixels, targets), learning_rate(optimizer, i, 400))[0] for i in range(steps)]
    return found[0].item(), found[-1].item()


@pytest.mark.parametrize(
    ("preset", "steps"),
    [
        ("multimnist", 15),
        pytest.param("affnist", 25, marks=pytest.mark.long),
        pytest.param("smallnorb", 40, marks=pytest.mark.long),
    ],
)
def test_thousands_of_primary_capsules_learn_with_a_warmup_and_not_without(preset, steps):
    first, last = losses(preset, steps, warmup=40)
    assert last < first / 2
    first, last = losses(preset, steps, warmup=0)
    assert last > 2 * first  # all class capsules have become long, and stay so
    assert load_preset(preset).optimizer.warmup_steps > 0
