"""Losses of the two papers: margin and reconstruction (Sabour et al. 2017), and those of the baselines."""

# B batch, J classes

from torch import Tensor
from torch.nn import functional as F

from training.config import LossConfig


def margin_loss(lengths: Tensor, present: Tensor, config: LossConfig) -> Tensor:
    """Margin loss for digit existence (Eq. 4), summed over classes, mean over the batch.

    Args:
        lengths: of the class capsules, [B, J].
        present: 1 where a class is in the image and 0 elsewhere, [B, J]; more than one may be.
        config: the margins and the weight of absent classes.

    Returns:
        A scalar.
    """
    too_short = (config.present_margin - lengths).clamp(min=0).square()
    too_long = (lengths - config.absent_margin).clamp(min=0).square()
    return (present * too_short + config.absent_weight * (1 - present) * too_long).sum(dim=1).mean()


def reconstruction_loss(reconstruction: Tensor, pixels: Tensor) -> Tensor:
    """Squared differences summed over pixels (Sec. 4.1), mean over the batch; both [B, C, H, W].

    Of several objects in an image, [B, objects, C, H, W], the differences are summed, too.
    """
    return (reconstruction - pixels).square().flatten(1).sum(dim=1).mean()


def softmax_loss(logits: Tensor, present: Tensor) -> Tensor:
    """Cross entropy of a softmax over the classes, mean over the batch; both [B, J], one class present."""
    return F.cross_entropy(logits, present)


def sigmoid_loss(logits: Tensor, present: Tensor) -> Tensor:
    """Cross entropy of a sigmoid per class, summed over classes, mean over the batch; both [B, J]."""
    return F.binary_cross_entropy_with_logits(logits, present, reduction="none").sum(dim=1).mean()
