"""What can be configured, one frozen dataclass per thing; `training/presets/*.toml` are their values."""

from training.config.data import DataConfig, WarpConfig
from training.config.loss import LossConfig
from training.config.model import (
    Block,
    CapsNetConfig,
    CnnConfig,
    MatrixCapsNetConfig,
    ModelConfig,
    StemConvolution,
)
from training.config.optimizer import OptimizerConfig
from training.config.presets import load_preset, presets
from training.config.run import RunConfig, differences, from_dict, to_dict

__all__ = [
    "Block",
    "CapsNetConfig",
    "CnnConfig",
    "DataConfig",
    "LossConfig",
    "MatrixCapsNetConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "StemConvolution",
    "WarpConfig",
    "differences",
    "from_dict",
    "load_preset",
    "presets",
    "to_dict",
]
