"""A small set of stereo pairs in smallNORB's files: all categories from all viewpoints, five toys of each."""

import itertools
from pathlib import Path
from typing import Literal

import numpy as np

from training.data.readers.smallnorb import SIZE, file_name, write_matrix

CATEGORIES, ELEVATIONS, AZIMUTHS = 5, 9, 18
TOYS = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}  # of each category
PAIRS = CATEGORIES * ELEVATIONS * AZIMUTHS  # of a split


def store(root: Path, name: str) -> None:
    """Write both splits: gratings, finer from category to category, with noise, in no order."""
    (root / name).mkdir(parents=True)
    splits: tuple[Literal["train", "test"], ...] = ("train", "test")
    for seed, split in enumerate(splits):
        dice = np.random.default_rng(seed)
        factors = np.array(list(itertools.product(range(CATEGORIES), range(ELEVATIONS), range(AZIMUTHS))))
        category, elevation, azimuth = dice.permutation(factors).T
        toy = np.array(TOYS[split])[(elevation * AZIMUTHS + azimuth) % 5]
        info = np.stack([toy, elevation, 2 * azimuth, np.zeros(PAIRS, int)], axis=1).astype(np.int32)
        across = np.sin(np.arange(SIZE) * (0.1 + 0.1 * category[:, None]))[:, None, None, :]
        noise = dice.integers(0, 60, (PAIRS, 2, SIZE, SIZE))
        matrices = {"dat": (noise + 60 * across + 90).astype(np.uint8), "cat": category.astype(np.int32)}
        for kind in ("dat", "cat", "info"):
            write_matrix(root / name / file_name(name, split, kind), (matrices | {"info": info})[kind])
