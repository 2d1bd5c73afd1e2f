"""Which of two trained networks is better, by images that both have held out: the test set chooses nothing.

    python -m benchmarks.training.held_out models/NAME/1 runs/NAME --versions 10

Each is a run, whose best checkpoint is taken, or a bundle. With several `--versions` of each image, a
smaller difference shows than in training, which has one: overlapping digits get other partners, the shifted
digits of affNIST are shifted otherwise, and images that training shifts (`max_shift_pixels`) are shown as
they are and then shifted. Others have one version.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from benchmarks.option_types import positive
from training.config import RunConfig
from training.data.batches import Batches, make_batches
from training.data.download import data_root
from training.data.images import Images
from training.data.run_images import training_batches
from training.data.seeding import RandomChoices
from training.data.transforms.augment import random_shift
from training.evaluate.evaluation import wrong_images
from training.experiments.paired import Comparison, compare
from training.models.build import Network
from training.runs import checkpoint, from_bundle
from training.runs.run_config import held_out_by

SEED = 0  # of the shifts


def load(place: Path) -> tuple[Network, RunConfig]:
    """The network of a run or of a bundle, in evaluation mode, and how it was trained."""
    if not from_bundle.is_bundle(place):
        config = checkpoint.read_config(place)
        best = checkpoint.best_checkpoint(place)
        return checkpoint.load_model(place, best, torch.device("cpu")).eval(), config
    return from_bundle.network(place), from_bundle.trained_config(place)


def held_out(configs: list[RunConfig], root: Path, versions: int = 1) -> Batches:
    """The images that all have held out, as all are shown them.

    Raises:
        ValueError: there are none, others for each, or they are shown in another size or place.
    """
    first, *others = (held_out_by(config) | shown_by(config, versions) for config in configs)
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


def shown_by(config: RunConfig, versions: int) -> dict[str, Any]:
    """What decides how a network is shown so many versions of the images that are held out."""
    data = config.data
    as_they_are = versions == 1 and data.spec.composition == "single"
    return {
        "resize_pixels": data.resize_pixels,
        "crop_pixels": data.crop_pixels,
        "max_shift_pixels": None if as_they_are else data.max_shift_pixels,
    }


def wrong_of_each_version(network: Network, held: Batches, versions: int) -> list[list[int]]:
    """The numbers of the images, from 0, that are wrong in each version; the same versions each time.

    Raises:
        ValueError: several versions of images that are shown as they are.
    """
    count, data = len(held), held.config
    if versions == 1 or data.spec.composition != "single":
        wrong = wrong_images(network, held, versions)
        return [[number % count for number in wrong if number // count == k] for k in range(versions)]
    if not data.max_shift_pixels:
        raise ValueError(f"{data.name} has one version of each image, not {versions}")
    choices = RandomChoices(torch.Generator().manual_seed(SEED), count)
    found = [wrong_images(network, held)]
    for _ in range(1, versions):
        pixels = random_shift(held.images.pixels, data.max_shift_pixels, choices, data.spec.repeat_edges)
        shifted = make_batches(data, held.classes, Images(pixels, held.images.labels))
        found.append(wrong_images(network, shifted))
    return found


def compare_networks(places: list[Path], root: Path, versions: int) -> tuple[Comparison, int]:
    """Errors of two networks, and how many pictures they were shown.

    Raises:
        ValueError: see `held_out` and `wrong_of_each_version`.
    """
    networks, configs = zip(*(load(place) for place in places), strict=True)
    held = held_out(list(configs), root, versions)
    wrong = (wrong_of_each_version(network, held, versions) for network in networks)
    return compare(*wrong), versions * len(held)


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
