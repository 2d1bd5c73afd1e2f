"""How a network is optimized."""

from pydantic import Field
from pydantic.dataclasses import dataclass

from training.config.strict import STRICT


@dataclass(frozen=True, config=STRICT)
class OptimizerConfig:
    """Adam with TensorFlow's defaults and an exponentially decaying rate.

    The rate at step t is max(learning_rate * decay_rate ** (t / decay_steps), min_learning_rate). A run of
    few epochs ends better when it also falls linearly to 0 over the last `cooldown_epochs` (0 in the paper).
    With a `ema_decay` above 0 what is measured and exported is an exponential moving average of the
    weights, of which each step keeps this share (0.999, say); 0 takes the weights themselves, as the paper.
    With a `stop_at_error_percent` the run ends before the last epoch: at the first one after which the
    validation error is at most so much; with `patience_epochs`, after so many epochs that did not improve
    validation: by a lower error or, while there are errors, a lower loss. `weight_decay` times half the
    squared weights is part of the loss.
    """

    batch_size: int = Field(default=128, ge=1)
    epochs: int = Field(default=300, ge=1)
    learning_rate: float = Field(default=0.001, gt=0)
    decay_rate: float = Field(default=0.96, gt=0, le=1)
    decay_steps: int = Field(default=2000, ge=1)
    min_learning_rate: float = Field(default=1e-6, ge=0)
    cooldown_epochs: int = Field(default=0, ge=0)
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    stop_at_error_percent: float | None = Field(default=None, ge=0, le=100)
    patience_epochs: int | None = Field(default=None, ge=1)
    weight_decay: float = Field(default=0.0, ge=0)
