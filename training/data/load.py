"""The images of a data set by its name, and what is known about the set. No torch here."""

# N images, H and W height and width

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from training.data import mnist
from training.data.drawn import draw_digits
from training.data.mnist import Split

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
FACTS = {"mnist": _DIGITS, "drawn": _DIGITS}


def load_split(name: str, split: Literal["train", "test"], root: Path) -> Split:
    """Images uint8 [N, H, W] and labels int64 [N] of a data set.

    Args:
        name: a key of FACTS.
        split: which images.
        root: holds one folder per data set.

    Raises:
        FileNotFoundError: a file is missing; names it, the folder and the command that downloads it.
    """
    if name == "drawn":
        labels = np.arange(DRAWN_IMAGES[split]) % 10
        return Split(draw_digits(labels, np.random.default_rng(DRAWN_SEEDS[split])), labels.astype(np.int64))
    return mnist.read_split(root / name, split)
