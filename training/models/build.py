"""A network from its configuration."""

from training.config import CapsNetConfig, CnnConfig, MatrixCapsNetConfig
from training.models.baselines import BaselineCnn
from training.models.capsnet import CapsNet
from training.models.cpu.forms import use_cpu_forms
from training.models.matrix_capsnet import MatrixCapsNet

Network = CapsNet | MatrixCapsNet | BaselineCnn


def build(config: CapsNetConfig | MatrixCapsNetConfig | CnnConfig) -> Network:
    """The network with random weights, from torch's global generator, and the faster forms for CPUs."""
    network = _plain(config)
    use_cpu_forms(network)
    return network


def _plain(config: CapsNetConfig | MatrixCapsNetConfig | CnnConfig) -> Network:
    match config:
        case CapsNetConfig():
            return CapsNet(config)
        case MatrixCapsNetConfig():
            return MatrixCapsNet(config)
        case CnnConfig():
            return BaselineCnn(config)
