"""What EM routing does to votes and gradients before the first step of training.

    python -m benchmarks.training.em_first_step         a minute of a CPU; toys from CAPSNET_DATA, or data

The network of 68K parameters for toys, without a decoder, with random weights: by Procedure 1 of the paper
with the constants of the official code, calibrated with two and with three iterations, and with three as
the preset matrix-toys-3-iterations begins. On the 32 images of the first batch, for both convolutional
capsule layers, the table shows lambda times the cost of a parent, the standard deviation of its activation
over images, and by which factor each E-step drives parent types apart: the standard deviation of their
means over the types, root mean square, in an iteration against the one before. Last comes the norm of the
gradient of spread loss, at its first margin, in the weights of the first convolution, mean over 6 batches.
All are means over the seeds.
"""

import argparse
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean

import torch

from training.config import MatrixCapsNetConfig, RunConfig, load_preset
from training.data.batches import Batch
from training.data.download import data_root
from training.data.run_images import training_batches
from training.loss.objective import compute_losses
from training.models.build import build
from training.models.calibration import calibrate
from training.models.em import Capsules
from training.models.matrix_capsnet import MatrixCapsNet
from training.models.matrix_capsules import MatrixCapsules

SEEDS = (0, 1, 2)
BATCHES = 6
BATCH = 32


@dataclass(frozen=True)
class LayerAtFirst:
    """A convolutional capsule layer; means over images, positions, parent types.

    Attributes:
        scaled_cost: lambda times a parent's cost in the last iteration, absolute.
        activation_sd: standard deviation of an activation over the images, median over the parents.
        driven_apart: by each E-step.
    """

    scaled_cost: float
    activation_sd: float
    driven_apart: tuple[float, ...]


@dataclass(frozen=True)
class AtFirst:
    """A network before its first step.

    Attributes:
        layers: the convolutional capsule layers.
        gradient: its norm in the first convolution's weights, mean over batches.
    """

    layers: tuple[LayerAtFirst, ...]
    gradient: float


def networks() -> dict[str, RunConfig]:
    """What is compared, by name."""
    two = _with(load_preset("matrix-toys"), decoder_hidden=())
    three = _with(two, routing_iterations=3)
    official = {
        "activation_logit_sd": None,
        "inverse_temperature": MatrixCapsNetConfig.inverse_temperature,
        "class_temperature_fraction": MatrixCapsNetConfig.class_temperature_fraction,
    }
    return {
        "Procedure 1, three": _with(three, **official),
        "calibrated, two": two,
        "calibrated, three": three,
        "three, exponent 1/4, noise 0.3": _with(three, density_exponent=0.25, matrix_noise=0.3),
    }


def at_first(config: RunConfig, batches: list[Batch], seed: int) -> AtFirst:
    """Build a network, calibrate it on the first batch and look at it."""
    torch.manual_seed(seed)
    network = build(config.model)
    assert isinstance(network, MatrixCapsNet)
    first = batches[0]
    calibrate(network, first.pixels, first.brightness_contrast)
    gradient = mean(_gradient(network, batch, config) for batch in batches)
    return AtFirst(_layers(network, first), gradient)


def _with(config: RunConfig, **changes: object) -> RunConfig:
    return replace(config, model=replace(config.model, **changes))  # type: ignore[arg-type]


def _gradient(network: MatrixCapsNet, batch: Batch, config: RunConfig) -> float:
    """Norm in the first convolution's weights."""
    network.zero_grad()
    margin = torch.tensor(config.loss.spread_margins[0])
    compute_losses(network, batch, config.loss, margin).classification.backward()
    gradient = network.conv.weight.grad
    assert gradient is not None
    return float(gradient.norm())


@torch.no_grad()
def _layers(network: MatrixCapsNet, batch: Batch) -> tuple[LayerAtFirst, ...]:
    children, found = network.primary_capsules(batch.pixels, batch.brightness_contrast), []
    for layer in network.conv_caps:
        assert isinstance(layer, MatrixCapsules)
        found.append(_layer(layer, children))
        children = layer(children)
    return tuple(found)


def _layer(layer: MatrixCapsules, children: Capsules) -> LayerAtFirst:
    steps = list(layer.iterations(children))
    apart = [float(step.mean.std(dim=2).square().mean().sqrt()) for step in steps]
    last, scale = steps[-1], layer.routing.inverse_temperatures()[-1]
    return LayerAtFirst(
        scale * float(layer.routing.costs(last.mass, last.variance).abs().mean()),
        float(last.log_activations.exp().std(dim=0).median()),
        tuple(after / before for before, after in pairwise(apart)),
    )


def random_batches(config: RunConfig) -> list[Batch]:
    """Training images as steps of training see them."""
    images, _ = training_batches(config, data_root(None))
    generator = torch.Generator().manual_seed(0)
    index = torch.randperm(len(images), generator=generator)[: BATCHES * BATCH]
    return [images.random(part, generator) for part in torch.split(index, BATCH)]


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    compared = networks()
    batches = random_batches(next(iter(compared.values())))
    print(f"{'':32}{'lambda x cost':>15}{'sd of activation':>18}{'driven apart':>22}{'gradient':>10}")
    for name, config in compared.items():
        found = [at_first(config, batches, seed) for seed in SEEDS]
        layers = list(zip(*(one.layers for one in found), strict=True))  # of all seeds, by layer
        costs = ", ".join(f"{mean(layer.scaled_cost for layer in seeds):.2g}" for seeds in layers)
        sds = ", ".join(f"{mean(layer.activation_sd for layer in seeds):.2g}" for seeds in layers)
        factors = "; ".join(
            ", ".join(f"{mean(step):.1f}" for step in zip(*(one.driven_apart for one in seeds), strict=True))
            for seeds in layers
        )
        gradient = mean(one.gradient for one in found)
        print(f"{name:32}{costs:>15}{sds:>18}{factors:>22}{gradient:10.3f}")


if __name__ == "__main__":
    main()
