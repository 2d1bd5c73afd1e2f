"""CapsNet of *Dynamic Routing Between Capsules* (Sabour, Frosst, Hinton 2017), Sec. 4: wiring only."""

# B batch, C image channels, H and W image height and width, I primary capsules, J classes, D class pose

import torch
from torch import Tensor, nn

from export.contract.architecture import PRIMARY_STRIDE
from training.config import CapsNetConfig
from training.models.capsules import ClassCapsules, Classified, PrimaryCapsules
from training.models.convolution import Convolution
from training.models.decoder import Decoder
from training.models.graph_names import name_in_graph
from training.models.official_initialization import initialize_officially
from training.models.standardize import prepare_pixels


class CapsNet(nn.Module):
    """Conv1, PrimaryCapsules, DigitCaps; a stem before them or a decoder if the configuration has one."""

    def __init__(self, config: CapsNetConfig):
        super().__init__()
        self.config = config
        widths = [config.image_channels, *(layer.channels for layer in config.stem)]
        self.stem = nn.ModuleList(
            Convolution(before, layer.channels, layer.kernel, layer.stride)
            for before, layer in zip(widths, config.stem, strict=False)
        )
        self.conv1 = Convolution(widths[-1], config.conv_channels, config.kernel)
        self.primary_caps = PrimaryCapsules(
            config.conv_channels,
            config.primary_types,
            config.primary_dim,
            config.kernel,
            PRIMARY_STRIDE,
            config.primary_coupling,
        )
        self.class_caps = ClassCapsules(
            config.primary_types * config.primary_size**2,
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
        if config.official_initialization:
            initialize_officially(self)

    def forward(self, pixels: Tensor, brightness_contrast: Tensor | None = None) -> Tensor:
        """Images [B, C, H, W], 0 to 1, to class capsules [B, J, D]; their lengths are the probabilities.

        With `brightness_contrast` [B, 2], `adjust_brightness_contrast` changes them first.
        """
        x = prepare_pixels(pixels, self.config.standardize_per_image, brightness_contrast)
        name_in_graph(x=x)
        for layer in self.stem:
            assert isinstance(layer, Convolution)  # a ModuleList forgets of what
            x = layer.conv_relu(x)
            name_in_graph(x=x)
        features = self.conv1.conv_relu(x)
        name_in_graph(features=features)
        u = self.primary_caps(features)
        v: Tensor = self.class_caps(u)
        return v

    def classify(self, pixels: Tensor, brightness_contrast: Tensor | None = None) -> Classified:
        """Images [B, C, H, W], 0 to 1, to poses and probabilities of the classes."""
        v = self(pixels, brightness_contrast)
        return Classified(v, lengths(v))


def lengths(v: Tensor) -> Tensor:
    """Probability that each capsule's entity is present: [..., D] to [...], 0 to 1 (Sec. 3)."""
    return torch.linalg.vector_norm(v, dim=-1)
