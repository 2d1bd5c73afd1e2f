"""Whether one way of training makes fewer errors than another on the same images, or by chance."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# I images of which only one of two ways is wrong

FLIPS = 9_999
SEED = 0


@dataclass(frozen=True)
class Comparison:
    """Errors of two ways of training on the same images, each with the same seeds.

    Attributes:
        before: errors of the one way, summed over seeds.
        after: errors of the other way.
        p: how probable a difference as large as this is, in either direction, if each image is as hard for
            both ways; 0 to 1.
    """

    before: int
    after: int
    p: float

    @property
    def fewer_percent(self) -> float | None:
        """By how much the errors fall, in percent of those before, if any; negative if they rise."""
        return 100 * (1 - self.after / self.before) if self.before else None


def compare(before: Sequence[Iterable[int]], after: Sequence[Iterable[int]]) -> Comparison:
    """Compare by a permutation test with images as its units: all seeds of an image are exchanged together.

    It says whether other images would give the same answer, not whether other seeds would.

    Args:
        before: of each seed, the numbers of the images that are misclassified.
        after: the same of the other way.

    Raises:
        ValueError: the two have different numbers of seeds.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} seeds cannot be paired with {len(after)}")
    counts = (Counter(image for seed in way for image in seed) for way in (before, after))
    first, second = counts
    differences = np.array([first[image] - second[image] for image in first.keys() | second.keys()], np.int64)
    differences = differences[differences != 0]  # [I]
    observed = abs(int(differences.sum()))
    rng = np.random.default_rng(SEED)
    as_large = 0
    for _ in range(FLIPS):
        signs = rng.integers(0, 2, len(differences)) * 2 - 1
        as_large += abs(int(differences @ signs)) >= observed
    return Comparison(first.total(), second.total(), (1 + as_large) / (1 + FLIPS))
