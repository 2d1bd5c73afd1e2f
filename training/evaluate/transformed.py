"""Digits transformed in ways that a network of shifted digits was never trained on (Sabour et al., Sec. 5.2).

Two sets are measured on, and they are two: affNIST's own file, where it has been downloaded, and the
affnist-style set that is made from MNIST's test digits (training/data/transforms/affnist_style.py).
"""

# B batch, C channels, J classes, H and W height and width

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import torch
from torch.nn import functional as F

from training.config import RunConfig
from training.data.batches import Batch, to_pixels
from training.data.datasets import load_split
from training.data.images import Images
from training.data.run_images import load_images
from training.data.transforms.affnist_style import affnist_style_set
from training.evaluate.evaluation import BATCH, Evaluation, evaluate_batches
from training.models.build import Network

TransformedSet = Literal["affnist", "affnist-style"]


def evaluate_transformed(
    model: Network,
    config: RunConfig,
    data: TransformedSet,
    root: Path,
    device: torch.device,
    versions: int = 1,
    stride: int = 1,
) -> Evaluation:
    """Measure a network of shifted digits on transformed ones.

    Args:
        model: in evaluation mode, on the device.
        config: of its run.
        data: which of the two sets.
        root: holds one folder per data set.
        device: where images are made and measured on.
        versions: of affnist-style, of each test digit.
        stride: of affNIST every stride-th image is measured on.

    Raises:
        MissingDataError: the set, or MNIST to make it of, is not here.
    """
    if data == "affnist":
        made = _parts(Images.of(load_split(data, "test", root)).to(device), stride)
    else:
        made = affnist_style_set(load_images(config, "test", root).to(device), BATCH, versions=versions)
    return evaluate_batches(model, _batches(made, config.model.classes), 1, config.loss)


def _parts(images: Images, stride: int) -> Iterator[Images]:
    """Every stride-th image, a batch at a time."""
    for start in range(0, len(images), stride * BATCH):
        yield images[start : start + stride * BATCH : stride]


def _batches(made: Iterable[Images], classes: int) -> Iterator[Batch]:
    for images in made:
        yield Batch.of(to_pixels(images.pixels), F.one_hot(images.labels, classes).float())
