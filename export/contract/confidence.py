"""Whether an answer is confident: probable enough for the model, of a picture that shows something."""

import math

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Manifest

# N images, J classes, K objects of an image, H and W height and width, C channels

Floats = NDArray[np.float32]

RIGHT_PERCENT = 99  # of the right answers reach the threshold
DECIMALS = 4  # of the threshold; significant digits, where it begins behind these
FLAT_RANGE = 12 / 255  # of a picture that shows nothing: as much as JPEG and a camera's noise leave on paper


def weakest_named(probabilities: Floats, objects: int) -> Floats:
    """The probability of the least probable class that is named, [N].

    Args:
        probabilities: of each class, [N, J].
        objects: classes that are named for each image, 1 to J.
    """
    return np.asarray(np.sort(probabilities, axis=1)[:, -objects])


def threshold_of(right: Floats) -> float:
    """The largest number of four decimals that 99 % of these probabilities reach, 0 to 1.

    Below 0.0001 it has four significant digits: it must not become 0, from which on all is confident.

    Args:
        right: `weakest_named` of right answers, at least one, [N].
    """
    may_miss = len(right) * (100 - RIGHT_PERCENT) // 100
    least = float(np.sort(right)[may_miss])
    decimals = DECIMALS
    if 0 < least < 10**-DECIMALS:
        decimals += math.floor(-math.log10(least))
    return math.floor(least * 10**decimals) / 10**decimals


def are_blank(pixels: Floats) -> NDArray[np.bool_]:
    """Images in which there is nothing to see: in every channel all pixels are nearly equal; bool [N].

    Of a digit in which no ink was found nothing is left in the frame, so that it is among these.

    Args:
        pixels: the model's inputs, [N, H, W, C], 0 to 1.
    """
    span = pixels.max(axis=(1, 2)) - pixels.min(axis=(1, 2))  # [N, C]
    return np.asarray((span <= FLAT_RANGE).all(axis=1))


def threshold(manifest: Manifest, asked: float | None = None) -> float | None:
    """From which probability on an answer is confident: what is asked for, else the model's own, if any."""
    if asked is None and manifest.confidence is not None:
        return manifest.confidence.min_probability
    return asked


def are_confident(
    probabilities: Floats, blank: NDArray[np.bool_], manifest: Manifest, asked: float | None = None
) -> list[bool] | list[None]:
    """Whether each answer is confident; None for each if there is no threshold.

    Args:
        probabilities: of each class, [N, J].
        blank: as `are_blank` found, [N]; nothing is confident of these.
        manifest: of the model; has its threshold, and how many classes are named.
        asked: a probability instead of that threshold, 0 to 1.
    """
    least = threshold(manifest, asked)
    if least is None:
        return [None] * len(probabilities)
    weakest = weakest_named(probabilities, manifest.objects_per_image)
    return [bool(sure) for sure in reaches(weakest, blank, least)]


def reaches(probabilities: Floats, blank: NDArray[np.bool_], least: float) -> NDArray[np.bool_]:
    """Where probabilities [N] or [N, K] are at least `least`, of images [N] that are not blank."""
    is_shown = ~blank.reshape(-1, *[1] * (probabilities.ndim - 1))
    return np.asarray((probabilities >= np.float32(least)) & is_shown)
