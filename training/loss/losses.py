"""Losses of the two papers and of the networks that they compare theirs with."""

# B batch, J classes

import math

from torch import Tensor
from torch.nn import functional as F

from training.config import LossConfig

MIN_ACTIVATION = 1e-12  # of an activation: the logarithm of 0 has no gradient


def margin_loss(lengths: Tensor, targets: Tensor, config: LossConfig) -> Tensor:
    """Margin loss for digit existence (Eq. 4), summed over classes, mean over the batch.

    Args:
        lengths: of the class capsules, [B, J].
        targets: 1 where a class is in the image and 0 elsewhere, [B, J]; more than one may be.
        config: the margins and the weight of absent classes.

    Returns:
        A scalar.
    """
    too_short = (config.present_margin - lengths).clamp(min=0).square()
    too_long = (lengths - config.absent_margin).clamp(min=0).square()
    return (targets * too_short + config.absent_weight * (1 - targets) * too_long).sum(dim=1).mean()


def spread_loss(activations: Tensor, targets: Tensor, margin: float | Tensor) -> Tensor:
    """Spread loss (Eq. 3, Hinton et al. 2018), summed over the absent classes, mean over the batch.

    Args:
        activations: of the class capsules, [B, J].
        targets: 1 for the one class that is in the image and 0 elsewhere, [B, J].
        margin: an absent class is penalized unless it stays so far below the present one.

    Returns:
        A scalar.
    """
    of_target = (targets * activations).sum(dim=1, keepdim=True)
    too_near = (margin - (of_target - activations)).clamp(min=0).square()
    return ((1 - targets) * too_near).sum(dim=1).mean()


def spread_margin(config: LossConfig, step: int, steps: int) -> float:
    """The spread loss's margin at a step, counted from 0, of a training of `steps` steps.

    The official code's schedule is one of steps alone, however many the training has.
    """
    first, last = config.spread_margins
    if config.spread_schedule == "official":  # its numbers
        return first + (last - first) / (1 + math.exp(-min(10, step / 50_000 - 4)))
    return first + (last - first) * min(step / max(steps - 1, 1), 1)


def proportion_loss(activations: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of the activations divided by their sum, mean over the batch; both [B, J]."""
    of_target, of_all = (targets * activations).sum(dim=1), activations.sum(dim=1)
    return ((of_all + MIN_ACTIVATION).log() - (of_target + MIN_ACTIVATION).log()).mean()


def reconstruction_loss(reconstruction: Tensor, pixels: Tensor) -> Tensor:
    """Squared differences summed over pixels (Sec. 4.1), mean over the batch; both [B, C, H, W].

    Of several objects in an image, [B, objects, C, H, W], the differences are summed, too.
    """
    return (reconstruction - pixels).square().flatten(1).sum(dim=1).mean()


def softmax_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of a softmax over the classes, mean over the batch; both [B, J], one class present."""
    return F.cross_entropy(logits, targets)


def sigmoid_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of a sigmoid per class, summed over classes, mean over the batch; both [B, J]."""
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1).mean()
