"""A network from its configuration."""

from training.config import CapsNetConfig, CnnConfig
from training.models.baselines import BaselineCnn
from training.models.capsnet import CapsNet

Network = CapsNet | BaselineCnn


def build(config: CapsNetConfig | CnnConfig) -> Network:
    """The network with random weights, from torch's global generator."""
    match config:
        case CapsNetConfig():
            return CapsNet(config)
        case CnnConfig():
            return BaselineCnn(config)
