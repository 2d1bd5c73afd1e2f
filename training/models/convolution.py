"""The convolution of all networks."""

# B images, C channels in, O channels out, H rows, W columns

import torch
from torch import Tensor, nn


class Convolution(nn.Conv2d):
    """A convolution without padding, whose sums may be scaled before the bias is added."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, scale: float = 1.0
    ):
        """Build the layer.

        Args:
            in_channels: C.
            out_channels: O.
            kernel_size: height and width of a kernel, pixels.
            stride: along both axes.
            scale: a constant that the sums are multiplied with before the bias is added.
        """
        super().__init__(in_channels, out_channels, kernel_size, stride)
        self.scale = scale

    def scaled_weight(self) -> Tensor:
        """The weights that give the scaled sums, [O, C, kernel rows, kernel columns]."""
        return self.weight if self.scale == 1 else self.weight * self.scale  # they are fewer than the maps

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to maps [B, O, rows, columns]."""
        weight = self.scaled_weight()
        return self._conv_forward(x, weight, self.bias)

    def conv_relu(self, x: Tensor) -> Tensor:
        """The layer and a ReLU, [B, O, rows, columns]."""
        return torch.relu(self(x))
