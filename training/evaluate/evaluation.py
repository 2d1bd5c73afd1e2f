"""Evaluation of a network on a fixed set of images."""

# N images, B batch, C channels, H and W height and width, J classes

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from training.config import LossConfig
from training.data.batches import Batch, Batches
from training.evaluate.metrics import Errors, are_right, exact_errors, object_errors
from training.loss.objective import compute_losses
from training.models.baselines import BaselineCnn
from training.models.build import Network

BATCH = 250


@dataclass(frozen=True)
class Evaluation(Errors):
    """Errors and losses on a set of images.

    Attributes:
        classification_loss: the configured one (spread loss at its final margin), or a baseline's cross
            entropy; mean over images.
        reconstruction_loss: squared error summed over pixels, mean over images; 0 without a decoder.
    """

    classification_loss: float
    reconstruction_loss: float


def evaluate(model: Network, batches: Batches, config: LossConfig, versions: int = 1) -> Evaluation:
    """Classify images and reconstruct each object from the capsule of its true class.

    Args:
        model: on any device; it is evaluated with dropout off and left in the mode it was in.
        batches: what to measure on.
        config: of the losses.
        versions: how often each image is shown, see `batches.fixed`.
    """
    return evaluate_batches(
        model, batches.fixed(BATCH, versions), batches.config.spec.objects_per_image, config
    )


@torch.no_grad()
def evaluate_batches(
    model: Network, batches: Iterable[Batch], per_image: int, config: LossConfig
) -> Evaluation:
    """`evaluate` on batches from anywhere, at least one, of images that show `per_image` objects each."""
    device = next(model.parameters()).device
    images = 0
    errors = torch.zeros(2, dtype=torch.int64, device=device)
    losses = torch.zeros(2, dtype=torch.float64, device=device)
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            batch = batch.to(device)
            found = compute_losses(model, batch, config)
            errors += torch.stack(
                [
                    exact_errors(found.probabilities, batch.targets, per_image),
                    object_errors(found.probabilities, batch.targets, per_image),
                ]
            )
            images += len(batch)
            losses += len(batch) * torch.stack([found.classification, found.reconstruction])
    finally:
        model.train(was_training)
    wrong, missed = errors.tolist()
    classification, reconstruction = (losses / images).tolist()
    return Evaluation(images, wrong, per_image * images, missed, classification, reconstruction)


def wrong_images(model: Network, batches: Batches, versions: int = 1) -> list[int]:
    """The numbers of the images, in their order, whose classes are not found exactly.

    Args:
        model: in evaluation mode.
        batches: what to look at.
        versions: how often each of N images is shown, see `batches.fixed`; version k of image i has the
            number k N + i.
    """
    right, objects = [], batches.config.spec.objects_per_image
    for batch in batches.fixed(BATCH, versions):
        probabilities = class_probabilities(model, [batch.pixels])
        right.append(are_right(probabilities, batch.targets.cpu(), objects))
    return (~torch.cat(right)).nonzero()[:, 0].tolist()


def predict(model: Network, pixels: Tensor) -> Tensor:
    """A network's class probabilities [B, J] for images [B, C, H, W], 0 to 1, on its device."""
    if isinstance(model, BaselineCnn):
        return model.probabilities(model(pixels))
    return model.classify(pixels).probabilities


@torch.no_grad()
def class_probabilities(model: Network, batches: Iterable[Tensor]) -> Tensor:
    """A network's class probabilities for images.

    Args:
        model: in evaluation mode.
        batches: the images, each [B, C, H, W], 0 to 1.

    Returns:
        The probability of each class for every image, float32 [N, J], on the CPU.
    """
    device = next(model.parameters()).device
    return torch.cat([predict(model, pixels.to(device)).float().cpu() for pixels in batches])
