"""Which of two trained networks is better, by images that both have held out: the test set chooses nothing.

    python -m benchmarks.training.held_out models/NAME/1 runs/NAME --versions 10

Each is a run, whose best checkpoint is taken, or a bundle of a CapsNet. Of overlapping digits, `--versions`
lays other partners over each image, so that a smaller difference shows than in training, which has one of
each; where digits are shifted, it shifts them otherwise.
"""

import argparse
from pathlib import Path

import torch

from training.config import RunConfig
from training.data.batches import Batches
from training.data.download import data_root
from training.data.run_images import training_batches
from training.evaluate.evaluation import wrong_images
from training.experiments.paired import Comparison, compare
from training.models.build import Network, build
from training.runs import checkpoint, from_bundle
from training.runs.weights import start_with


def load(place: Path) -> tuple[Network, RunConfig]:
    """The network of a run or of a bundle, in evaluation mode, and how it was trained."""
    if not from_bundle.is_bundle(place):
        best = checkpoint.best_checkpoint(place)
        return checkpoint.load_model(place, best, torch.device("cpu")).eval(), checkpoint.read_config(place)
    config = from_bundle.trained_config(place)
    network = build(config.model)
    start_with(network, from_bundle.weights(place, from_bundle.origin(place)["bundle"]))
    return network.eval(), config


def held_out(configs: list[RunConfig], root: Path) -> Batches:
    """The images that all have held out.

    Raises:
        ValueError: there are none, or others for each.
    """
    choices = {(c.data.name, c.data.validation_images, c.data.held_out, c.seed) for c in configs}
    _, held = training_batches(configs[0], root)
    if held is None or len(choices) > 1:
        raise ValueError(f"held out are different images, or none: {sorted(choices)}")
    return held


def compare_networks(places: list[Path], root: Path, versions: int) -> tuple[Comparison, int]:
    """Errors of two networks, and how many pictures they were shown."""
    networks, configs = zip(*(load(place) for place in places), strict=True)
    held = held_out(list(configs), root)
    wrong = [wrong_images(network, held, versions) for network in networks]
    by_version = [
        [[number % len(held) for number in each if number // len(held) == k] for k in range(versions)]
        for each in wrong
    ]
    return compare(*by_version), versions * len(held)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs=2, type=Path, help="runs or bundles")
    parser.add_argument("--versions", type=int, default=1, help="of each image (default: 1)")
    options = parser.parse_args()
    found, pictures = compare_networks(options.networks, data_root(None), options.versions)
    for place, wrong in zip(options.networks, (found.before, found.after), strict=True):
        print(f"{place}: {wrong:,} of {pictures:,} held-out pictures wrong, {100 * wrong / pictures:.2f} %")
    print(f"p {found.p:.2g}: so probable is such a difference if each image is as hard for both")


if __name__ == "__main__":
    main()
