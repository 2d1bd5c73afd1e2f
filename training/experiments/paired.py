"""Whether one way of training makes fewer errors than another on the same images, or by chance."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


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

    It says whether other images would give the same answer, not whether other seeds would. Its p is exact:
    all exchanges are counted, none are drawn.

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
    differences = [first[image] - second[image] for image in first.keys() | second.keys()]
    chances = _chances_of_sums([abs(difference) for difference in differences])
    sums = np.arange(len(chances)) - len(chances) // 2
    as_large = np.abs(sums) >= abs(sum(differences))
    return Comparison(first.total(), second.total(), min(1.0, float(chances[as_large].sum())))


def _chances_of_sums(sizes: Sequence[int]) -> np.ndarray:
    """How probable each sum of these numbers is if a coin decides the sign of each.

    Returns:
        float64 [2S + 1], for sums of -S to S, where S is the sum of the sizes.
    """
    chances = np.ones(1)
    for size in sizes:
        minus, plus = np.pad(chances, (0, 2 * size)), np.pad(chances, (2 * size, 0))
        chances = (minus + plus) / 2
    return chances
