"""Adversarial examples: pictures that a small change makes a network classify wrong.

FGSM (https://arxiv.org/abs/1412.6572) and the basic iterative method, BIM (https://arxiv.org/abs/1607.02533),
as in Sec. 6 of *Matrix Capsules with EM Routing* (Hinton, Sabour, Frosst 2018). Both change pixels, 0 to 1,
before a network standardizes them; the gradient passes through that step, too.

They increase the classification loss that they are given: spread loss, margin loss, or a baseline's cross
entropy; the paper only says "the loss". With the margin of training, 0.9, an image that is classified right
by more than that has a loss of 0, no gradient, and resists the attack for that reason alone;
`with_widest_margins` gives the same loss with margins of 1.
"""

# B batch, C channels, H and W height and width

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from training.config import LossConfig
from training.data.batches import Batch
from training.loss.objective import compute_losses
from training.models.build import Network

BIM_REACH = 1.25  # all steps together, in epsilons: as Kurakin's for up to 16 gray levels


def bim(
    model: Network,
    pixels: Tensor,
    classes: Tensor,
    epsilon: float,
    steps: int,
    config: LossConfig,
    targeted: bool = False,
) -> Tensor:
    """Several smaller steps, each by the gradient where the one before has led, clipped to epsilon.

    Kurakin takes min(epsilon + 4, 1.25 epsilon) steps of one gray level in 255, with epsilon in gray levels:
    together 1.25 epsilon for up to 16 of them, beyond that less. Here the number of steps is given, and
    together they go 1.25 epsilon whatever it is. With one step this is FGSM.

    Args:
        model: in evaluation mode.
        pixels: images [B, C, H, W], 0 to 1.
        classes: the class of each; in a targeted attack the class to be predicted, int64 [B].
        epsilon: how much a pixel may change, of the whole range from black to white.
        steps: at least 1.
        config: of the loss that is raised.
        targeted: the loss with the given class is lowered, not raised.

    Returns:
        Images [B, C, H, W], 0 to 1, nowhere further than epsilon from those given.
    """
    lowest, highest = (pixels - epsilon).clamp(min=0), (pixels + epsilon).clamp(max=1)
    found = pixels
    for _ in range(steps):
        towards = direction(model, found, classes, config, targeted)
        found = (found + BIM_REACH * epsilon / steps * towards).clamp(lowest, highest)
    return found


def direction(
    model: Network, pixels: Tensor, classes: Tensor, config: LossConfig, targeted: bool = False
) -> Tensor:
    """Where each pixel goes, [B, C, H, W]: 1 up, -1 down, 0 where the gradient is exactly 0.

    The arguments are those of `bim`.
    """
    climbs = gradient(model, pixels, classes, config).sign()
    return -climbs if targeted else climbs


def moved(pixels: Tensor, towards: Tensor, epsilon: float) -> Tensor:
    """Images after a step of epsilon in a direction, both [B, C, H, W]; they stay between 0 and 1."""
    return (pixels + epsilon * towards).clamp(0, 1)


def gradient(model: Network, pixels: Tensor, classes: Tensor, config: LossConfig) -> Tensor:
    """Of each image's own loss by its pixels.

    Args:
        model: in evaluation mode.
        pixels: images [B, C, H, W], 0 to 1.
        classes: what the loss takes them for, int64 [B].
        config: of the loss.

    Returns:
        [B, C, H, W]; its unit is loss per pixel value, from black to white.
    """
    with torch.enable_grad():
        shown = pixels.detach().requires_grad_()
        targets = F.one_hot(classes, model.config.classes).float()
        loss = compute_losses(model, Batch.of(shown, targets), config).classification  # a mean over images
        [found] = torch.autograd.grad(len(pixels) * loss, shown)
    return found


def with_widest_margins(config: LossConfig) -> LossConfig:
    """The same loss, with margins that no image has reached."""
    return replace(config, spread_margins=(1.0, 1.0), present_margin=1.0, absent_margin=0.0)
