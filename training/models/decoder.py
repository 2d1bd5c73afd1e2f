"""The reconstruction decoder (Sec. 4.1, Sabour et al. 2017)."""

# B batch, J class capsules, D pose, C image channels, H and W image height and width

from itertools import pairwise

import torch
from torch import Tensor, nn

from training.models.graph_names import name_in_graph


class Decoder(nn.Module):
    """Fully connected layers from the masked class capsules to pixels."""

    def __init__(
        self, classes: int, pose_dim: int, hidden: tuple[int, ...], image_channels: int, image_size: int
    ):
        super().__init__()
        self.image_shape = (image_channels, image_size, image_size)
        widths = [classes * pose_dim, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.pixels = nn.Linear(widths[-1], image_channels * image_size * image_size)

    def forward(self, poses: Tensor, mask: Tensor) -> Tensor:
        """Reconstruct an image from the capsules that the mask keeps.

        Args:
            poses: class capsules, [B, J, D].
            mask: 1 for the capsule to decode and 0 for the others, [B, J].

        Returns:
            Images, [B, C, H, W], 0 to 1.
        """
        masked = poses * mask.unsqueeze(-1)
        x = masked.flatten(1)
        name_in_graph(masked=masked, x=x)
        for layer in self.hidden:
            x = torch.relu(layer(x))
            name_in_graph(x=x)
        reconstruction = torch.sigmoid(self.pixels(x)).unflatten(1, self.image_shape)
        name_in_graph(reconstruction=reconstruction)
        return reconstruction
