"""What a network is trained for: to classify images and to reconstruct them."""

# B batch, K objects per image, J classes, D class pose, C channels, H and W height and width

from typing import NamedTuple, TypeVar

from torch import Tensor

from training.config import LossConfig
from training.data.batches import Batch
from training.loss.losses import (
    margin_loss,
    proportion_loss,
    reconstruction_loss,
    sigmoid_loss,
    softmax_loss,
    spread_loss,
)
from training.models.baselines import BaselineCnn
from training.models.build import Network
from training.models.decoder import Decoder
from training.models.standardize import standardize_brightness_contrast

Number = TypeVar("Number", float, Tensor)


class LossOutput(NamedTuple):
    """A network's answers to a batch, and their losses.

    Attributes:
        probabilities: of each class, [B, J].
        classification: the loss of a capsule network's answers that is configured, cross entropy of a
            baseline; a scalar.
        reconstruction: squared error summed over pixels and objects, mean over images; 0 without a decoder.
    """

    probabilities: Tensor
    classification: Tensor
    reconstruction: Tensor


def total_loss(classification: Number, reconstruction: Number, config: LossConfig) -> Number:
    """The loss that is minimized."""
    return config.margin_weight * classification + config.reconstruction_weight * reconstruction


def compute_losses(
    model: Network, batch: Batch, config: LossConfig, spread_margin: Tensor | None = None
) -> LossOutput:
    """Classify and reconstruct a batch.

    Args:
        model: on the batch's device.
        batch: of images.
        config: of the losses.
        spread_margin: of spread loss at this moment of training, a scalar; None: at its end.
    """
    if isinstance(model, BaselineCnn):
        logits = model(batch.pixels, batch.brightness_contrast).float()
        cross_entropy = softmax_loss if model.config.exclusive else sigmoid_loss
        loss = cross_entropy(logits, batch.targets)
        return LossOutput(model.probabilities(logits), loss, loss.new_zeros(()))
    poses, probabilities = model.classify(batch.pixels, batch.brightness_contrast)
    loss = _classification_loss(probabilities, batch.targets, config, spread_margin)
    if model.decoder is None:
        return LossOutput(probabilities, loss, loss.new_zeros(()))
    drawn = reconstruct(model.decoder, poses, batch.masks)
    return LossOutput(probabilities, loss, reconstruction_loss(drawn, _drawn_from(batch, config)))


def _drawn_from(batch: Batch, config: LossConfig) -> Tensor:
    """What the decoder should draw of objects, [B, K, C, H, W]; black where there is none."""
    if config.reconstruction_target == "image":
        return batch.objects
    shown = standardize_brightness_contrast(batch.objects.flatten(0, 1)).unflatten(0, batch.objects.shape[:2])
    return shown * batch.masks.sum(dim=2)[..., None, None, None]


def _classification_loss(
    probabilities: Tensor, targets: Tensor, config: LossConfig, spread_margin: Tensor | None
) -> Tensor:
    """The one that is configured."""
    match config.classification:
        case "margin":
            return margin_loss(probabilities, targets, config)
        case "spread":
            margin = config.spread_margins[1] if spread_margin is None else spread_margin
            return spread_loss(probabilities, targets, margin)
        case "cross-entropy":
            return proportion_loss(probabilities, targets)


def reconstruct(decoder: Decoder, poses: Tensor, masks: Tensor) -> Tensor:
    """Reconstruct each object from its class's capsule alone.

    Args:
        decoder: of the network.
        poses: of the class capsules, [B, J, D].
        masks: for each object 1 at its class, [B, K, J].

    Returns:
        Images [B, K, C, H, W], float32, 0 to 1.
    """
    objects = masks.shape[1]
    repeated = poses.unsqueeze(1).expand(-1, objects, -1, -1).flatten(0, 1)  # [B K, J, D]
    return decoder(repeated, masks.flatten(0, 1)).float().unflatten(0, (-1, objects))
