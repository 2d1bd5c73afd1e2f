"""CapsNet as it is usually written in PyTorch: what benchmarks/training/step.py compares with.

The same network and the same loss, straight from the paper's equations: direct convolutions, one broadcast
matrix product for all predictions, and routing by multiplying and summing with axes of length 1. Nothing is
done to slow it down, and nothing to speed it up. The broadcast product expands the weights for each image,
which some implementations avoid by an einsum: it can be had as well.

A CNN is the one that is compared with in the papers' experiments, by PyTorch's own operators.
"""

# B batch, I primary capsules, J classes, E primary pose, D class pose, H and W image height and width

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models.baselines import BaselineCnn
from training.models.capsnet import CapsNet


def squash(s: Tensor) -> Tensor:
    """Eq. 1; poses in the last axis."""
    sq = (s**2).sum(dim=-1, keepdim=True)
    return sq / (1 + sq) * s / torch.sqrt(sq + 1e-7)


class PrimaryCaps(nn.Module):
    """32 types of capsules of 8 elements at each position."""

    def __init__(self, in_channels: int, types: int, pose_dim: int):
        super().__init__()
        self.pose_dim = pose_dim
        self.conv = nn.Conv2d(in_channels, types * pose_dim, kernel_size=9, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to capsules [B, I, E]."""
        maps = self.conv(x)
        batch, channels, height, width = maps.shape
        capsules = maps.view(batch, channels // self.pose_dim, self.pose_dim, height, width)
        return squash(capsules.permute(0, 1, 3, 4, 2).reshape(batch, -1, self.pose_dim))


class DigitCaps(nn.Module):
    """Capsules of the classes, by dynamic routing (Procedure 1)."""

    def __init__(self, lower: int, lower_dim: int, upper: int, upper_dim: int, iterations: int, einsum: bool):
        super().__init__()
        self.iterations, self.einsum = iterations, einsum
        self.weight = nn.Parameter(0.1 * torch.randn(1, lower, upper, lower_dim, upper_dim))

    def forward(self, u: Tensor) -> Tensor:
        """Capsules [B, I, E] to capsules [B, J, D]."""
        if self.einsum:
            u_hat = torch.einsum("bie,ijed->bijd", u, self.weight[0])
        else:
            u_hat = torch.matmul(u[:, :, None, None, :], self.weight).squeeze(3)  # [B, I, J, D]
        b = torch.zeros(*u_hat.shape[:3], 1, device=u.device)
        for iteration in range(self.iterations):
            c = F.softmax(b, dim=2)
            s = (c * u_hat).sum(dim=1, keepdim=True)  # [B, 1, J, D]
            v = squash(s)
            if iteration < self.iterations - 1:
                b = b + (u_hat * v).sum(dim=-1, keepdim=True)
        return v.squeeze(1)


class StraightforwardCapsNet(nn.Module):
    """The paper's network with its decoder; made with the weights of one of ours."""

    def __init__(self, ours: CapsNet, *, einsum: bool = False):
        super().__init__()
        config = ours.config
        assert ours.decoder is not None
        weight = ours.class_caps.weight.detach()
        self.conv1 = nn.Conv2d(config.image_channels, config.conv_channels, kernel_size=9)
        self.primary_caps = PrimaryCaps(config.conv_channels, config.primary_types, config.primary_dim)
        self.digit_caps = DigitCaps(
            len(weight),
            config.primary_dim,
            config.classes,
            config.class_dim,
            config.routing_iterations,
            einsum,
        )
        widths = [config.classes * config.class_dim, *config.decoder_hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        pixels = config.image_channels * config.image_size**2
        self.decoder = nn.Sequential(*layers, nn.Linear(widths[-1], pixels), nn.Sigmoid())
        self.conv1.load_state_dict(ours.conv1.state_dict())
        self.primary_caps.conv.load_state_dict(ours.primary_caps.conv.state_dict())
        by_class = weight.view(len(weight), config.primary_dim, config.classes, config.class_dim)
        self.digit_caps.weight.data = by_class.transpose(1, 2).unsqueeze(0).contiguous()
        linears = [*self.decoder][::2]
        for linear, layer in zip(linears, [*ours.decoder.hidden, ours.decoder.pixels], strict=True):
            linear.load_state_dict(layer.state_dict())

    def forward(self, pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Images [B, C, H, W] and what is present [B, J] to poses [B, J, D] and pictures [B, pixels]."""
        v = self.digit_caps(self.primary_caps(F.relu(self.conv1(pixels))))
        return v, self.decoder((v * targets[:, :, None]).flatten(1))


class StraightforwardStep:
    """A loss, backward, Adam."""

    def __init__(self, model: StraightforwardCapsNet | BaselineCnn, learning_rate: float):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)

    def __call__(self, pixels: Tensor, targets: Tensor) -> Tensor:
        """Learn from a batch; gives the loss."""
        self.optimizer.zero_grad()
        loss = self._loss(pixels, targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _loss(self, pixels: Tensor, targets: Tensor) -> Tensor:
        """Margin loss (Eq. 4) and scaled reconstruction loss (Sec. 4.1), or a CNN's cross-entropy."""
        as_in_our_step = torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda)
        if isinstance(self.model, BaselineCnn):
            with as_in_our_step:
                logits = self.model(pixels)
            return F.cross_entropy(logits.float(), targets)
        with as_in_our_step:
            v, reconstruction = self.model(pixels, targets)
        v, reconstruction = v.float(), reconstruction.float()
        length = torch.sqrt((v**2).sum(dim=-1))
        margin = targets * F.relu(0.9 - length) ** 2 + 0.5 * (1 - targets) * F.relu(length - 0.1) ** 2
        error = ((reconstruction - pixels.flatten(1)) ** 2).sum(dim=1)
        return margin.sum(dim=1).mean() + 0.0005 * error.mean()
