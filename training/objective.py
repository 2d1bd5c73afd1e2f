"""What a network is trained for: to name what an image shows, and to draw it again."""

# B batch, K objects per image, J classes, D class pose, C channels, H and W height and width

from typing import NamedTuple, TypeVar

from torch import Tensor

from training.config import LossConfig
from training.examples import Batch
from training.losses import margin_loss, reconstruction_loss, sigmoid_loss, softmax_loss
from training.models.build import Network
from training.models.capsnet import CapsNet, lengths
from training.models.decoder import Decoder

Number = TypeVar("Number", float, Tensor)


class Outcome(NamedTuple):
    """What a network makes of a batch.

    Attributes:
        probabilities: of each class, [B, J].
        classification: margin loss of a CapsNet (Eq. 4), cross entropy of a baseline; a scalar.
        reconstruction: squared error summed over pixels and objects, mean over images; 0 without a decoder.
    """

    probabilities: Tensor
    classification: Tensor
    reconstruction: Tensor


def total_loss(classification: Number, reconstruction: Number, config: LossConfig) -> Number:
    """What is minimised."""
    return config.margin_weight * classification + config.reconstruction_weight * reconstruction


def look_at(model: Network, batch: Batch, config: LossConfig) -> Outcome:
    """Show a batch to a network."""
    if not isinstance(model, CapsNet):
        logits = model(batch.pixels).float()
        cross_entropy = softmax_loss if model.config.exclusive else sigmoid_loss
        loss = cross_entropy(logits, batch.present)
        return Outcome(model.probabilities(logits), loss, loss.new_zeros(()))
    v = model(batch.pixels)
    probabilities = lengths(v)
    margin = margin_loss(probabilities, batch.present, config)
    if model.decoder is None:
        return Outcome(probabilities, margin, margin.new_zeros(()))
    drawn = reconstruct(model.decoder, v, batch.masks)
    return Outcome(probabilities, margin, reconstruction_loss(drawn, batch.objects))


def reconstruct(decoder: Decoder, v: Tensor, masks: Tensor) -> Tensor:
    """Draw each object from its class's capsule alone.

    Args:
        decoder: of the network.
        v: class capsules, [B, J, D].
        masks: for each object 1 at its class, [B, K, J].

    Returns:
        Images [B, K, C, H, W], float32, 0 to 1.
    """
    objects = masks.shape[1]
    repeated = v.unsqueeze(1).expand(-1, objects, -1, -1).flatten(0, 1)  # [B K, J, D]
    return decoder(repeated, masks.flatten(0, 1)).float().unflatten(0, (-1, objects))
