"""The images of a data set by its name, and what is known about the set. No torch here."""

# N images, H and W height and width, C channels

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from training.config import DataConfig
from training.data.readers import affnist, cifar10, cifar10_jpeg, folder, mnist, smallnorb, svhn
from training.data.split import Split
from training.data.synthetic.drawn_digits import draw_digits

DRAWN_IMAGES = {"train": 4500, "test": 1000}
DRAWN_SEEDS = {"train": 1, "test": 2}


@dataclass(frozen=True)
class DataFacts:
    """What a data set's pictures are like; export hands it to whoever prepares new ones.

    Attributes:
        class_names: one per label, in order.
        polarity: `light-on-dark` when ink is light and paper dark.
        placement: how an object sits in the frame, see `export.contract.preprocess`.
    """

    class_names: tuple[str, ...]
    polarity: Literal["light-on-dark", "any"]
    placement: Literal["digit", "fit", "centre-crop"]


_DIGITS = DataFacts(tuple("0123456789"), "light-on-dark", "digit")
_DIGITS_ANYWHERE = DataFacts(_DIGITS.class_names, "light-on-dark", "fit")
_OBJECTS = DataFacts(cifar10.CLASS_NAMES, "any", "centre-crop")
FACTS = {
    "mnist": _DIGITS,
    "drawn": _DIGITS,
    # Its makers trimmed each article, fitted it into the frame and made it light on dark.
    "fashion-mnist": DataFacts(mnist.FASHION_CLASS_NAMES, "light-on-dark", "fit"),
    # A digit may lie anywhere in the frame, so that a picture is only fitted, never its ink.
    "affnist": _DIGITS_ANYWHERE,
    "shifted-mnist": _DIGITS_ANYWHERE,
    "multimnist": _DIGITS_ANYWHERE,
    "cifar10": _OBJECTS,
    "cifar10-jpeg": _OBJECTS,
    "svhn": DataFacts(_DIGITS.class_names, "any", "centre-crop"),
    "smallnorb": DataFacts(smallnorb.CLASS_NAMES, "any", "centre-crop"),
    "toys": DataFacts(smallnorb.CLASS_NAMES, "any", "centre-crop"),
}


def facts_of(data: DataConfig) -> DataFacts:
    """What the pictures of a run are like, its user's own included."""
    if data.name == "images":
        return DataFacts(data.class_names, folder.POLARITY, folder.PLACEMENT)
    return FACTS[data.name]


def load_split(name: str, split: Literal["train", "test"], root: Path) -> Split:
    """Images uint8 [N, H, W, C] and labels int64 [N] of a data set.

    Args:
        name: a key of FACTS. `cifar10-jpeg` is the copy that went through JPEG, in the folder of `cifar10`.
        split: which images; `affnist` has `test` only.
        root: holds one folder per data set.

    Raises:
        FileNotFoundError: a file is missing; names it, the folder and the command that brings it.
        ValueError: no such data set or split, or a file is damaged.
        ModuleNotFoundError: SciPy is missing, which `svhn` and `affnist` need.
    """
    match name:
        case "drawn":
            return _drawn(split)
        case "mnist" | "fashion-mnist":
            return mnist.read_split(root / name, split)
        case "multimnist" | "shifted-mnist":  # made of these digits, see training/data/batches.py
            return mnist.read_split(root / "mnist", split)
        case "cifar10":
            return cifar10.read_split(root / name, split)
        case "cifar10-jpeg":
            return cifar10_jpeg.read_split(root / "cifar10", split)
        case "svhn":
            return svhn.read_split(root / name, split)
        case "smallnorb" | "toys":  # files of one form
            return smallnorb.read_split(root / name, split, name)
        case "affnist" if split == "test":
            return affnist.read_test(root / name)
        case "affnist":
            raise ValueError("affnist is a test set: networks measured on it are trained on mnist")
        case _:
            raise ValueError(f"no data set {name!r}; there are {', '.join(sorted(FACTS))}")


def _drawn(split: Literal["train", "test"]) -> Split:
    """Digits that the repository draws, the same ones each time."""
    labels = np.arange(DRAWN_IMAGES[split]) % 10
    images = draw_digits(labels, np.random.default_rng(DRAWN_SEEDS[split]))
    return Split(images[..., None], labels.astype(np.int64))
