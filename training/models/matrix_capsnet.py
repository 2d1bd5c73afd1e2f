"""The network of *Matrix Capsules with EM Routing* (Hinton, Sabour, Frosst 2018), Sec. 4: wiring only.

https://openreview.net/forum?id=HJWLfGWRb
"""

# B batch, C image channels, H and W image height and width, J classes, 16 pose elements

from dataclasses import replace

import torch
from torch import Tensor, nn

from export.contract.architecture import CAPSULE_KERNEL, CAPSULE_STRIDES, CONV_KERNEL, CONV_STRIDE
from export.contract.receptive_fields import Grid, matrix_capsule_grids
from training.config import MatrixCapsNetConfig
from training.models.capsules import Classified
from training.models.convolution import Convolution
from training.models.decoder import Decoder
from training.models.em import (
    OFFICIAL,
    OFFICIAL_OF_CLASSES,
    Capsules,
    EMConstants,
    EMRouting,
    ReceptiveFields,
)
from training.models.graph_names import name_in_graph
from training.models.matrix_capsules import (
    COORDINATES,
    OFFICIAL_COORDINATES,
    POSE,
    MatrixCapsules,
    PrimaryMatrixCapsules,
)
from training.models.standardize import prepare_pixels


class MatrixCapsNet(nn.Module):
    """A convolution, primary capsules, two convolutional capsule layers, class capsules; maybe a decoder."""

    def __init__(self, config: MatrixCapsNetConfig):
        super().__init__()
        self.config = config
        self.conv = Convolution(config.image_channels, config.conv_channels, CONV_KERNEL, CONV_STRIDE)
        self.primary_caps = PrimaryMatrixCapsules(config.conv_channels, config.primary_types)
        *below, last = matrix_capsule_grids(config.image_size)
        types, layers = config.primary_types, []
        for upper, stride, grid in zip(config.conv_caps_types, CAPSULE_STRIDES, below, strict=True):
            fields = ReceptiveFields.sliding(grid.size, CAPSULE_KERNEL, stride)
            routing = self._routing(upper)
            noise = config.matrix_noise
            layers.append(MatrixCapsules(fields, types, routing, config.vector_poses, matrix_noise=noise))
            types = upper
        self.conv_caps = nn.ModuleList(layers)
        self.class_caps = MatrixCapsules(
            ReceptiveFields.everything(last.size**2),
            types,
            self._routing(config.classes, of_classes=True),
            config.vector_poses,
            shared=True,
            coordinates=_centers(last, config.image_size) if config.coordinate_addition else None,
            elements=OFFICIAL_COORDINATES if config.official_routing else COORDINATES,
            matrix_noise=config.matrix_noise,
        )
        if config.official_routing:
            for layer in layers:
                layer.begin_as_officially(matrix_std=0.3, sigma_bias=0.5, activation_bias=0.5)
            self.class_caps.begin_as_officially(matrix_std=0.01, sigma_bias=2.0, activation_bias=1.0)
        self.decoder = (
            Decoder(config.classes, POSE, config.decoder_hidden, config.image_channels, config.image_size)
            if config.decoder_hidden
            else None
        )

    def forward(self, pixels: Tensor, brightness_contrast: Tensor | None = None) -> Capsules:
        """Images [B, C, H, W], 0 to 1, to class capsules: poses [B, J, 16] and activations [B, J].

        With `brightness_contrast` [B, 2], `adjust_brightness_contrast` changes them first.
        """
        capsules = self.primary_capsules(pixels, brightness_contrast)
        for layer in self.conv_caps:
            capsules = layer(capsules)
            self._follow(layer, capsules.activations)
        capsules = self.class_caps(capsules)
        poses = capsules.poses.squeeze(1)
        activations = capsules.activations.squeeze(1)
        name_in_graph(poses=poses, activations=activations)
        return Capsules(poses, activations)

    def _follow(self, layer: nn.Module, activations: Tensor) -> None:
        """In a step of training, let a convolutional capsule layer's lambda and budgets follow the batch."""
        momentum, deviation = self.config.calibration_momentum, self.config.activation_logit_sd
        learns = self.training and activations.requires_grad and len(activations) > 1
        routing = layer.routing
        assert isinstance(routing, EMRouting)
        if momentum and deviation and learns and routing.calibrated:
            with torch.no_grad():
                routing.follow(activations, deviation, momentum)

    def primary_capsules(self, pixels: Tensor, brightness_contrast: Tensor | None = None) -> Capsules:
        """The capsules that the convolutional capsule layers are given.

        Raises:
            ValueError: the images have another size than the network's.
        """
        size = self.config.image_size
        if pixels.shape[2:] != (size, size):  # compiled routing reads positions without a look at the bounds
            raise ValueError(f"the network takes images of {size}x{size} pixels, got {tuple(pixels.shape)}")
        x = prepare_pixels(pixels, self.config.standardize_per_image, brightness_contrast)
        features = self.conv.conv_relu(x)
        name_in_graph(x=x, features=features)
        capsules: Capsules = self.primary_caps(features)
        return capsules

    def classify(self, pixels: Tensor, brightness_contrast: Tensor | None = None) -> Classified:
        """The same as poses and probabilities of the classes."""
        return Classified(*self(pixels, brightness_contrast))

    def _routing(self, types: int, of_classes: bool = False) -> EMRouting:
        config = self.config
        official = OFFICIAL_OF_CLASSES if of_classes else OFFICIAL
        lambda_fraction = config.class_temperature_fraction if of_classes else 1.0
        constants = replace(
            official if config.official_routing else EMConstants(),
            inverse_temperature=config.inverse_temperature * lambda_fraction,
            density_exponent=config.density_exponent,
        )
        calibrated = config.activation_logit_sd is not None and not of_classes
        mixing = config.mixing_proportions
        routing = EMRouting(types, config.routing_iterations, constants, mixing, calibrated)
        if routing.calibrated and config.calibration_momentum:
            routing.beta_a.requires_grad_(False)
        return routing


def _centers(grid: Grid, image_size: int) -> Tensor:
    """Centers of a grid's receptive fields, in image heights and widths, [grid.size^2, 2]."""
    along = torch.tensor(grid.centers) / image_size
    return torch.stack(torch.meshgrid(along, along, indexing="ij"), dim=2).flatten(0, 1)
