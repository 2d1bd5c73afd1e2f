"""Which toys are photographed, how, and in what order the pictures stand in the files."""

# N stereo pairs

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from training.data.readers.smallnorb import CLASS_NAMES
from training.data.synthetic.toys.studio import SEED

Part = Literal["train", "test"]


@dataclass(frozen=True)
class Conditions:
    """By default all that smallNORB has: 24,300 pairs to train on, and as many of other toys.

    Attributes:
        train: toys of each category to train on, each 0 to 9.
        test: others to measure on.
        elevations: 0 to 8, from 30 degrees in steps of 5.
        azimuths: 0 to 17, in steps of 20 degrees.
        lightings: 0 to 5.
    """

    train: tuple[int, ...] = (4, 6, 7, 8, 9)
    test: tuple[int, ...] = (0, 1, 2, 3, 5)
    elevations: tuple[int, ...] = tuple(range(9))
    azimuths: tuple[int, ...] = tuple(range(18))
    lightings: tuple[int, ...] = tuple(range(6))

    def toys(self, split: Part) -> tuple[int, ...]:
        """Which of each category are in a split."""
        return self.train if split == "train" else self.test

    def pairs(self, split: Part) -> NDArray[np.int32]:
        """Category, toy, elevation, azimuth and lighting of each pair of a split, int32 [N, 5].

        As in smallNORB the categories take turns and all else is in no order, so that the first thousand
        pairs are as good a sample as any other.
        """
        factors = (self.toys(split), self.elevations, self.azimuths, self.lightings)
        combinations = np.array(list(itertools.product(*factors)), np.int32)
        pairs = np.empty((len(combinations), len(CLASS_NAMES), 5), np.int32)
        for category in range(len(CLASS_NAMES)):
            dice = np.random.default_rng((SEED, category)).random(len(combinations))
            pairs[:, category, 0] = category
            pairs[:, category, 1:] = combinations[np.argsort(dice, kind="stable")]
        return pairs.reshape(-1, 5)
