"""Losses of the two papers: margin and reconstruction (Sabour et al. 2017)."""

# B batch, J classes

from torch import Tensor

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
    """Squared differences summed over pixels (Sec. 4.1), mean over the batch; both [B, C, H, W]."""
    return (reconstruction - pixels).square().flatten(1).sum(dim=1).mean()
