"""CapsNet of *Dynamic Routing Between Capsules* (Sabour, Frosst, Hinton 2017), Sec. 4: wiring only."""

# B batch, C image channels, H and W image height and width, I primary capsules, J classes, D class pose

import torch
from torch import Tensor, nn

from training.config import CapsNetConfig
from training.models.capsules import ClassCapsules, Classified, PrimaryCapsules
from training.models.convolution import Convolution, rectified
from training.models.decoder import Decoder
from training.models.official_initialisation import initialise_officially
from training.models.standardise import standardise

KERNEL = 9  # of Conv1 (stride 1) and of PrimaryCapsules (stride 2), Sec. 4
PRIMARY_STRIDE = 2


class CapsNet(nn.Module):
    """Conv1, PrimaryCapsules, DigitCaps; a decoder unless the configuration leaves it out."""

    def __init__(self, config: CapsNetConfig):
        super().__init__()
        self.config = config
        conv_size = config.image_size - KERNEL + 1
        primary_size = (conv_size - KERNEL) // PRIMARY_STRIDE + 1
        self.conv1 = Convolution(config.image_channels, config.conv_channels, KERNEL)
        self.primary_caps = PrimaryCapsules(
            config.conv_channels,
            config.primary_types,
            config.primary_dim,
            KERNEL,
            PRIMARY_STRIDE,
            config.primary_coupling,
        )
        self.class_caps = ClassCapsules(
            config.primary_types * primary_size**2,
            config.primary_dim,
            config.classes,
            config.class_dim,
            config.routing_iterations,
            config.learned_priors,
            config.none_of_the_above,
            config.capsule_bias,
        )
        self.decoder = (
            Decoder(
                config.classes,
                config.class_dim,
                config.decoder_hidden,
                config.image_channels,
                config.image_size,
            )
            if config.decoder_hidden
            else None
        )
        if config.official_initialisation:
            initialise_officially(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """Images [B, C, H, W], 0 to 1, to class capsules [B, J, D]; their lengths are the probabilities."""
        x = standardise(pixels) if self.config.standardise else pixels
        features = rectified(self.conv1, x)
        u = self.primary_caps(features)
        v: Tensor = self.class_caps(u)
        return v

    def classify(self, pixels: Tensor) -> Classified:
        """Images [B, C, H, W], 0 to 1, to poses and probabilities of the classes."""
        v = self(pixels)
        return Classified(v, lengths(v))


def lengths(v: Tensor) -> Tensor:
    """Probability that each capsule's entity is present: [..., D] to [...], 0 to 1 (Sec. 3)."""
    return torch.linalg.vector_norm(v, dim=-1)
