"""What EM routing does in a run's network, or in a bundle's, on images that were held out in training."""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from training.config import RunConfig
from training.data.batches import Batches, make_batches
from training.data.own_pictures import find_again
from training.data.run_images import training_batches
from training.evaluate.inspection import Inspection, inspect
from training.models.matrix_capsnet import MatrixCapsNet
from training.runs import checkpoint, from_bundle
from training.runs.open_run import open_run


def inspect_network(
    path: Path, root: Path, device: torch.device, count: int, images: Path | None = None
) -> Inspection:
    """Inspect a run's best checkpoint or a bundle on some of its validation images.

    These are never test images, unless the run was trained on familiar viewpoints: it is validated on those
    of the test set that it may know.

    Args:
        path: folder of the run, or of a bundle or its model, whose newest version is taken.
        root: holds one folder per data set.
        device: where to measure.
        count: how many images, drawn at random, the same each time; all if there are fewer.
        images: where the user's own pictures lie now; None: where they lay in training.

    Raises:
        FileNotFoundError: `path` is neither, or a file of the data set, or its pictures, are not there.
        ValueError: the network is not one of matrix capsules, or learned from images of two objects; nothing
            was held out, or a file is damaged.
    """
    config, model = _network(path, device, images)
    _, validation = training_batches(config, root)
    if validation is None:
        raise ValueError(f"{path}: its run held no images out, validation_images is 0")
    if len(validation) < 2:  # how activations vary over images is what is measured
        raise ValueError(f"{path}: its run held out one image, at least two are needed")
    shown = sample(validation, count)
    [batch] = shown.fixed(len(shown))
    return inspect(model, batch)


def sample(batches: Batches, count: int) -> Batches:
    """Some of the images at random, the same each time; all if there are fewer."""
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(0))[:count]
    some = batches.images[order.to(batches.images.pixels.device)]
    return make_batches(batches.config, batches.classes, some)


def _network(path: Path, device: torch.device, images: Path | None) -> tuple[RunConfig, MatrixCapsNet]:
    if checkpoint.is_run(path):
        best = open_run(path, device, images)
        _refuse_others(path, best.config)
        assert isinstance(best.model, MatrixCapsNet)
        return best.config, best.model
    if not from_bundle.is_bundle(path):
        raise FileNotFoundError(f"{path} is neither a run of capsnet-train nor a bundle")
    config = from_bundle.trained_config(path)
    _refuse_others(path, config)
    config, model = find_again(config, images, path), from_bundle.network(path)
    assert isinstance(model, MatrixCapsNet)
    return config, model.to(device)


def _refuse_others(path: Path, config: RunConfig) -> None:
    if (kind := config.model.architecture) != "matrix-capsnet":
        raise ValueError(f"{path} is a {kind}: inspect measures the activations of matrix capsules")
    if config.data.spec.objects_per_image > 1:
        raise ValueError(f"{path} learned from {config.data.name}: inspect measures images of one object")


def as_json(found: Inspection) -> str:
    """The numbers by their names in `Inspection`."""
    return json.dumps(asdict(found), indent=2)


def as_table(found: Inspection) -> str:
    """The numbers in columns of text."""
    lines = [
        f"{found.images} validation images, error {found.error_percent:.1f} %",
        "",
        f"{'activations of':<14} {'iteration':>9} {'sd 25 %':>9} {'median':>9} {'75 %':>9} {'saturated':>9} "
        f"{'entropy':>9} {'mass':>9}",
    ]
    for of in found.activity:
        numbers = "".join(f" {value:9.3f}" for value in (*of.sd, of.saturated))
        numbers += "".join(
            f" {'-':>9}" if value is None else f" {value:9.3f}" for value in (of.entropy, of.mass)
        )
        lines.append(f"{of.layer:<14} {of.iteration or '-':>9}{numbers}")
    lines += ["", f"{'frozen to means':<27} {'error, %':>9} {'answers changed, %':>19}"]
    for each in found.frozen:
        names = " and ".join(each.layers)
        lines.append(f"{names:<27} {each.error_percent:9.1f} {each.changed_percent:19.1f}")
    return "\n".join(lines)
