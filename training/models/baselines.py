"""The convolutional baselines of the two papers: wiring only.

https://arxiv.org/abs/1710.09829, Sec. 5, 5.2 and 6.2; https://openreview.net/forum?id=HJWLfGWRb, Sec. 5.
Convolutions keep the size of their maps (SAME padding); only this gives the papers' parameter counts.
"""

# B batch, C image channels, H and W image height and width, J classes

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.config import CnnConfig
from training.models.convolution import Convolution
from training.models.standardize import prepare_pixels


class BaselineCnn(nn.Module):
    """Convolutions, fully connected layers, one logit per class.

    Its loss is `losses.softmax_loss` if `config.exclusive`, else `losses.sigmoid_loss`.
    """

    def __init__(self, config: CnnConfig):
        super().__init__()
        self.config = config
        channels = [config.image_channels, *(block.channels for block in config.blocks)]
        self.convolutions = nn.ModuleList(
            Convolution(before, after, block.kernel)
            for (before, after), block in zip(pairwise(channels), config.blocks, strict=True)
        )
        size = config.image_size
        for block in config.blocks:
            size = -(-size // 2) if block.pooled else size
        widths = [channels[-1] * size**2, *config.hidden]
        self.hidden = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.dropout = nn.Dropout(config.dropout)
        self.classes = nn.Linear(widths[-1], config.classes)

    def forward(self, pixels: Tensor, brightness_contrast: Tensor | None = None) -> Tensor:
        """Images [B, C, H, W], 0 to 1, to logits [B, J]; `brightness_contrast` as in `CapsNet`."""
        logits: Tensor = self.classes(self.dropout(self.features(pixels, brightness_contrast)))
        return logits

    def features(self, pixels: Tensor, brightness_contrast: Tensor | None = None) -> Tensor:
        """What the last hidden layer makes of images, [B, F]; arguments as of `forward`."""
        x = prepare_pixels(pixels, self.config.standardize_per_image, brightness_contrast)
        for convolution, block in zip(self.convolutions, self.config.blocks, strict=True):
            assert isinstance(convolution, Convolution)
            margin = convolution.kernel_size[0] // 2
            x = convolution.conv_relu(F.pad(x, (margin,) * 4))
            if block.pooled:
                x = F.max_pool2d(x, 2, ceil_mode=True)  # SAME: an odd last row is pooled alone
        x = x.flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return x

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of each class, 0 to 1, [B, J]; they sum to 1 if an image shows exactly one."""
        return logits.softmax(dim=1) if self.config.exclusive else logits.sigmoid()
