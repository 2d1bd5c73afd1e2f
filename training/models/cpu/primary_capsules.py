"""Primary matrix capsules as matrix products over channels that lie last in memory, for training on a CPU."""

# B batch, C channels, S = H * W positions

from torch import Tensor, nn
from torch.nn import functional as F

from training.models.cpu.cpu_training import trained_on_cpu
from training.models.em import Capsules
from training.models.matrix_capsules import POSE, PrimaryMatrixCapsules


class CpuPrimaryMatrixCapsules(PrimaryMatrixCapsules):
    """The layer, without turning the maps of `unfolded_convolution.py` over: in memory they are [S, B, C]."""

    def forward(self, x: Tensor) -> Capsules:
        """Feature maps [B, C, H, W] to capsules at S positions, row by row."""
        if not trained_on_cpu(x):
            return super().forward(x)
        channels = x.permute(2, 3, 0, 1).flatten(0, 1)  # [S, B, C]
        poses, activations = (_by_products(layer, channels) for layer in (self.poses, self.activations))
        return Capsules(poses.unflatten(2, (-1, POSE)), activations.sigmoid())


def _by_products(layer: nn.Conv2d, channels: Tensor) -> Tensor:
    """A convolution with a 1x1 kernel, [B, S, O]."""
    return F.linear(channels, layer.weight.flatten(1), layer.bias).transpose(0, 1)
