"""Compare the graphs of the site with the bundles' own on the test images: `python -m browser.compare`.

Printed for each bundle: of how many images they name other classes, by how much probabilities differ, and the
test error of both.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from browser.graphs import browser_graphs
from docs.build import ROOT
from export.contract.manifest import newest_version, read_checked, read_manifest
from export.evaluate import answers, config_to_measure
from export.explain.shared_weights import hold_weights
from export.optimize.half_gate import Agreement, compare
from training.data.download import data_root
from training.data.own_pictures import find_again
from training.data.run_images import evaluation_batches
from training.evaluate.metrics import exact_errors


def main() -> None:
    """Compare the bundles that are named, or all that the site has."""
    parser = argparse.ArgumentParser(prog="python -m browser.compare", description=__doc__)
    parser.add_argument("bundles", nargs="*", type=Path, help="folders of models; without, all of models/")
    parser.add_argument(
        "--data", type=Path, help="folder of all data sets (default: $CAPSNET_DATA, else data)"
    )
    parser.add_argument("--images", type=Path, help="folder of your own pictures, where they lie now")
    options = parser.parse_args()
    for folder in options.bundles or sorted(path for path in (ROOT / "models").iterdir() if path.is_dir()):
        try:
            bundle, root = newest_version(folder), data_root(options.data)
            agreement, wrong, wrong_rounded = compare_bundle(bundle, root, options.images)
        except (OSError, ValueError) as error:
            sys.exit(f"browser.compare: {error}")
        errors = [f"{100 * count / agreement.images:.2f} %" for count in (wrong, wrong_rounded)]
        print(
            f"{folder.name}: {agreement.images} test images, {agreement.other_decisions} with other classes, "
            f"probabilities differ by at most {agreement.length_error:.1e}; "
            f"test error {errors[0]} in float32 and {errors[1]} with weights in float16"
        )


def compare_bundle(bundle: Path, root: Path, images: Path | None) -> tuple[Agreement, int, int]:
    """What differs on the test images, and how many of these each graph gets wrong.

    Args:
        bundle: folder of the version.
        root: holds one folder per data set.
        images: where the user's own pictures lie now; None: where they lay in training.

    Raises:
        FileNotFoundError: a file of the data set, or the pictures, are missing; says how to get or name them.
        ValueError: `images` is given for a bundle of a data set.
        BundleError: the bundle disagrees with its manifest, or with the data set.
        RoundingError: float16 does not hold a weight.
    """
    manifest = read_manifest(bundle)
    graphs, weights = browser_graphs(bundle, manifest)
    encoders = (read_checked(bundle, manifest.graphs["encoder"]), hold_weights(graphs["encoder"], weights))
    batches = evaluation_batches(find_again(config_to_measure(manifest), images, bundle), root)
    plain, rounded = ([*answers(encoder, manifest.architecture, batches)] for encoder in encoders)
    objects = manifest.objects_per_image
    wrong, wrong_rounded = (
        sum(int(exact_errors(found, batch.targets, objects)) for found, batch in answered)
        for answered in (plain, rounded)
    )
    expected, found = (
        np.concatenate([probabilities.numpy() for probabilities, _ in answered])
        for answered in (plain, rounded)
    )
    return compare(expected, found, objects), wrong, wrong_rounded


if __name__ == "__main__":
    main()
