"""Error counts for images of one or several objects."""

# B batch, J classes

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Errors:
    """A network's errors on a set of images.

    Attributes:
        images: how many there are.
        errors: how many of them are not named right; of two objects in an image both must be (Sec. 6.2).
        objects: how many these images show together.
        object_errors: how many of these are not among an image's most probable classes.
    """

    images: int
    errors: int
    objects: int
    object_errors: int

    @property
    def error_percent(self) -> float:
        """Percentage of images with a wrong answer."""
        return 100 * self.errors / self.images

    @property
    def object_error_percent(self) -> float:
        """Percentage of objects that are not found."""
        return 100 * self.object_errors / self.objects


def most_probable(probabilities: Tensor, objects: int) -> Tensor:
    """The classes taken to be in each image: 1 at its `objects` most probable classes, bool [B, J].

    Sec. 6.2, Sabour et al. 2017: the two most active capsules are the classification.

    Args:
        probabilities: lengths of class capsules, or a network's logits, [B, J].
        objects: how many an image shows.
    """
    chosen = probabilities.topk(objects, dim=1).indices
    return torch.zeros_like(probabilities, dtype=torch.bool).scatter(1, chosen, True)


def are_right(probabilities: Tensor, targets: Tensor, objects: int) -> Tensor:
    """Which images are right: their classes are found exactly, all of them, bool [B].

    Args:
        probabilities: of each class, [B, J].
        targets: 1 at the `objects` classes that are in the image and 0 elsewhere, [B, J].
        objects: how many an image shows.
    """
    return (most_probable(probabilities, objects) == targets.bool()).all(dim=1)


def exact_errors(probabilities: Tensor, targets: Tensor, objects: int) -> Tensor:
    """Images whose classes are not found exactly, all of them: the paper's MultiMNIST error.

    Args are those of `are_right`.

    Returns:
        A count of at most B, int64 scalar on the device.
    """
    return (~are_right(probabilities, targets, objects)).sum()


def object_errors(probabilities: Tensor, targets: Tensor, objects: int) -> Tensor:
    """Objects that are not found, each counted on its own: what other papers call the MultiMNIST error.

    Args and the count are those of `exact_errors`, but of at most B * objects.
    """
    missed = targets.bool() & ~most_probable(probabilities, objects)
    return missed.sum()
