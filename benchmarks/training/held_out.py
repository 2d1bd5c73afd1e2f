"""Which of two trained networks is better, by images that both have held out: the test set chooses nothing.

    python -m benchmarks.training.held_out models/NAME/1 runs/NAME --versions 10

Each is a run, whose best checkpoint is taken, or a bundle of a CapsNet. Of overlapping digits, `--versions`
lays other partners over each image, so that a smaller difference shows than in training, which has one of
each; shifted digits are shifted otherwise. Data sets that are shown as they are have one version.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.option_types import positive
from training.config import RunConfig
from training.data.batches import Batches
from training.data.download import data_root
from training.data.run_images import training_batches
from training.evaluate.evaluation import wrong_images
from training.experiments.paired import Comparison, compare
from training.models.build import Network, build
from training.runs import checkpoint, from_bundle
from training.runs.run_config import held_out_by
from training.runs.weights import start_with


def load(place: Path) -> tuple[Network, RunConfig]:
    """The network of a run or of a bundle, in evaluation mode, and how it was trained."""
    if not from_bundle.is_bundle(place):
        config = checkpoint.read_config(place)
        best = checkpoint.best_checkpoint(place)
        return checkpoint.load_model(place, best, torch.device("cpu")).eval(), config
    config = from_bundle.trained_config(place)
    network = build(config.model)
    start_with(network, from_bundle.weights(place, from_bundle.origin(place)["bundle"]))
    return network.eval(), config


def held_out(configs: list[RunConfig], root: Path) -> Batches:
    """The images that all have held out, as all are shown them.

    Raises:
        ValueError: there are none, others for each, or they are shown in another size or place.
    """
    first, *others = (held_out_by(config) | shown_by(config) for config in configs)
    for other in others:
        differing = [
            f"{name} {there}, {other[name]}" for name, there in first.items() if there != other[name]
        ]
        if differing:
            raise ValueError(f"the networks cannot be compared: {'; '.join(differing)}")
    _, held = training_batches(configs[0], root)
    if held is None:
        raise ValueError("the networks have held out no images")
    return held


def shown_by(config: RunConfig) -> dict[str, Any]:
    """What decides how a network is shown the images that are held out."""
    data = config.data
    return {
        "resize_pixels": data.resize_pixels,
        "crop_pixels": data.crop_pixels,
        "max_shift_pixels": data.max_shift_pixels if data.spec.composition != "single" else None,
    }


def compare_networks(places: list[Path], root: Path, versions: int) -> tuple[Comparison, int]:
    """Errors of two networks, and how many pictures they were shown.

    Raises:
        ValueError: see `held_out`; or several versions of images that are shown as they are.
    """
    networks, configs = zip(*(load(place) for place in places), strict=True)
    held = held_out(list(configs), root)
    if versions > 1 and held.config.spec.composition == "single":
        raise ValueError(f"{held.config.name} has one version of each image, not {versions}")
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
    parser.add_argument("--versions", type=positive, default=1, help="of each image (default: 1)")
    options = parser.parse_args()
    try:
        found, pictures = compare_networks(options.networks, data_root(None), options.versions)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for place, wrong in zip(options.networks, (found.before, found.after), strict=True):
        print(f"{place}: {wrong:,} of {pictures:,} held-out pictures wrong, {100 * wrong / pictures:.2f} %")
    print(f"p {found.p:.2g}: so probable is such a difference if each image is as hard for both")


if __name__ == "__main__":
    main()
