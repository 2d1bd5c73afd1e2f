"""From a model's outputs to predictions: what the service and `capsnet-score --local` share."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from export.contract.confidence import are_blank, are_confident
from export.contract.manifest import Manifest

# N images, J classes, K of them, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]


class PredictedClass(TypedDict):
    """One class: its probability, and its pose [D]."""

    label: str
    probability: np.float32
    pose: Floats


class Prediction(TypedDict):
    """What the model says of one image.

    Attributes:
        label: the most probable class.
        labels: as many of the most probable classes as the model expects objects in an image.
        confident: the answer reaches the threshold; None if there is no threshold.
        blank: the image shows nothing.
        classes: by falling probability.
    """

    label: str
    labels: list[str]
    confident: bool | None
    blank: bool
    classes: list[PredictedClass]


def rank_classes(probabilities: Floats, k: int | None = None) -> NDArray[np.intp]:
    """The k most probable classes of each image, or all: indices [N, K] of probabilities [N, J]."""
    return (-probabilities).argsort(axis=1, kind="stable")[:, :k]


def predictions(
    pixels: Floats,
    outputs: tuple[Floats, Floats],
    manifest: Manifest,
    top_k: int | None = None,
    min_probability: float | None = None,
) -> list[Prediction]:
    """What the model says of each image.

    Args:
        pixels: the model's input, [N, H, W, C].
        outputs: of the encoder, probabilities [N, J] and poses [N, J, D].
        manifest: of the model.
        top_k: classes of each image; None for all.
        min_probability: from which on an answer is confident; None for the model's threshold.
    """
    probabilities, poses = outputs
    blank = are_blank(pixels)
    confident = are_confident(probabilities, blank, manifest, min_probability)
    names = manifest.class_names
    made: list[Prediction] = []
    for n, ranked in enumerate(rank_classes(probabilities).tolist()):
        probability, pose = probabilities[n], poses[n]  # [J], [J, D]
        labels = [names[j] for j in ranked[: manifest.objects_per_image]]
        made.append(
            {
                "label": labels[0],
                "labels": labels,
                "confident": confident[n],
                "blank": bool(blank[n]),
                "classes": [
                    {"label": names[j], "probability": probability[j], "pose": pose[j]}
                    for j in ranked[:top_k]
                ],
            }
        )
    return made
