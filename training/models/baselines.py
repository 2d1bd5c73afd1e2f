"""The convolutional networks that Sabour et al. 2017 compare CapsNet with: wiring only.

https://arxiv.org/abs/1710.09829, Sec. 5, 5.2 and 6.1. Convolutions keep the size of their maps (SAME
padding): with any other the paper's parameter counts do not come out.
"""

# B batch, C image channels, H and W image height and width, J classes

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models.convolution import Convolution, rectified

DROPOUT = 0.5  # the paper names no rate


class Block(NamedTuple):
    """A convolution with ReLU, then max-pooling of 2x2 or none; `kernel` is odd."""

    channels: int
    kernel: int
    pooled: bool


MNIST_BLOCKS = (Block(256, 5, False), Block(256, 5, False), Block(128, 5, False))
MNIST_HIDDEN = (328, 192)
MULTIMNIST_BLOCKS = (Block(512, 9, True), Block(256, 5, True))
MULTIMNIST_HIDDEN = (1024,)
# The paper says no more than max-pooling, dropout and about as many parameters as CapsNet: this is its MNIST
# network with pooling, and with a first hidden layer that makes up for what CapsNet has more.
AFFNIST_BLOCKS = (Block(256, 5, True), Block(256, 5, True), Block(128, 5, False))
AFFNIST_HIDDEN = (848, 192)


class BaselineCnn(nn.Module):
    """Convolutions, fully connected layers, one logit per class."""

    def __init__(
        self,
        image_size: int,
        image_channels: int,
        classes: int,
        blocks: tuple[Block, ...],
        hidden: tuple[int, ...],
        dropout: float,
        exclusive: bool,
    ):
        """Build the layers.

        Args:
            image_size: height and width of the input, pixels.
            image_channels: 1 for grey, 3 for RGB, 2 for a stereo pair.
            classes: logits.
            blocks: the convolutions, in order.
            hidden: widths of the fully connected layers before the logits.
            dropout: share of the last hidden layer that is left out in training.
            exclusive: an image shows exactly one class, so probabilities are a softmax and the loss is
                `losses.softmax_loss`; else a sigmoid for each class and `losses.sigmoid_loss`.
        """
        super().__init__()
        self.exclusive = exclusive
        self.pooled = [block.pooled for block in blocks]
        channels = [image_channels, *(block.channels for block in blocks)]
        self.convolutions = nn.ModuleList(
            Convolution(before, after, block.kernel)
            for (before, after), block in zip(pairwise(channels), blocks, strict=True)
        )
        size = image_size
        for pooled in self.pooled:
            size = -(-size // 2) if pooled else size
        widths = [channels[-1] * size**2, *hidden]
        self.hidden = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(widths[-1], classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Images [B, C, H, W], 0 to 1, to logits [B, J]."""
        x = pixels
        for convolution, pooled in zip(self.convolutions, self.pooled, strict=True):
            assert isinstance(convolution, Convolution)
            margin = convolution.kernel_size[0] // 2
            x = rectified(convolution, F.pad(x, (margin,) * 4))
            if pooled:
                x = F.max_pool2d(x, 2, ceil_mode=True)  # SAME: an odd last row is pooled alone
        x = x.flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        logits: Tensor = self.classes(self.dropout(x))
        return logits

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of each class, 0 to 1, [B, J]; they sum to 1 if an image shows exactly one."""
        return logits.softmax(dim=1) if self.exclusive else logits.sigmoid()


def mnist_baseline(image_size: int = 28, image_channels: int = 1, classes: int = 10) -> BaselineCnn:
    """The network of Sec. 5: 35,445,522 parameters on MNIST (35.4M in the paper, 0.39 % error)."""
    return BaselineCnn(image_size, image_channels, classes, MNIST_BLOCKS, MNIST_HIDDEN, DROPOUT, True)


def multimnist_baseline(image_size: int = 36, image_channels: int = 1, classes: int = 10) -> BaselineCnn:
    """The network of Sec. 6.1: 24,563,978 parameters on MultiMNIST (24.56M in the paper, 8.1 % error)."""
    return BaselineCnn(
        image_size, image_channels, classes, MULTIMNIST_BLOCKS, MULTIMNIST_HIDDEN, dropout=0, exclusive=False
    )


def affnist_baseline(image_size: int = 40, image_channels: int = 1, classes: int = 10) -> BaselineCnn:
    """A network for Sec. 5.2: 13,484,826 parameters, CapsNet with its decoder has 13,475,648 at 40x40."""
    return BaselineCnn(image_size, image_channels, classes, AFFNIST_BLOCKS, AFFNIST_HIDDEN, DROPOUT, True)
