"""A network from its configuration."""

from training.config import CapsNetConfig, CnnConfig, MatrixCapsNetConfig
from training.models.baselines import BaselineCnn
from training.models.capsnet import CapsNet
from training.models.forms import use_training_forms
from training.models.matrix_capsnet import MatrixCapsNet

Network = CapsNet | MatrixCapsNet | BaselineCnn


def build(config: CapsNetConfig | MatrixCapsNetConfig | CnnConfig) -> Network:
    """The network with random weights, from torch's global generator, and its faster forms for training."""
    network = _plain(config)
    use_training_forms(network)
    return network


def _plain(config: CapsNetConfig | MatrixCapsNetConfig | CnnConfig) -> Network:
    match config:
        case CapsNetConfig():
            return CapsNet(config)
        case MatrixCapsNetConfig():
            return MatrixCapsNet(config)
        case CnnConfig():
            return BaselineCnn(config)
