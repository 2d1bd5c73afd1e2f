"""How a network is optimized."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from training.config.strict import STRICT, Count


@dataclass(frozen=True, config=STRICT)
class OptimizerConfig:
    """Adam with TensorFlow's defaults and an exponentially decaying learning rate.

    After the warm-up, and before the cooldown, the rate at step t is max(learning_rate * decay_rate **
    (t / decay_steps), min_learning_rate).

    Attributes:
        batch_size: images in a step.
        epochs: passes over the training images, at most.
        learning_rate: before it decays.
        decay_rate: factor by which the rate falls in `decay_steps` steps.
        decay_steps: see `decay_rate`.
        min_learning_rate: below which the rate does not decay.
        warmup_steps: over the first steps, this many and at most a fifth of the run, the rate rises linearly
            (0 in the paper). Where thousands of primary capsules add up, a whole first step makes all class
            capsules nearly as long as 1, from where they learn nothing.
        cooldown_epochs: over the last epochs, this many, the rate falls linearly to 0 (0 in the paper); a run
            of few epochs ends better with it.
        ema_decay: evaluate and export an exponential moving average of the weights with this decay per step,
            such as 0.999; 0 takes the weights themselves, as the paper does.
        stop_at_error_percent: the run ends after the first epoch whose validation error is at most this.
        patience_epochs: the run ends after this many epochs without a lower validation error or, while there
            are errors, a lower validation loss.
        weight_decay: times half the squared weights is part of the loss.
        trained_part: `decoder` trains that alone, on the poses of the network that the run was started from.
    """

    batch_size: Count = 128
    epochs: int = Field(default=300, ge=1)
    learning_rate: float = Field(default=0.001, gt=0)
    decay_rate: float = Field(default=0.96, gt=0, le=1)
    decay_steps: int = Field(default=2000, ge=1)
    min_learning_rate: float = Field(default=1e-6, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    cooldown_epochs: int = Field(default=0, ge=0)
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    stop_at_error_percent: float | None = Field(default=None, ge=0, le=100)
    patience_epochs: int | None = Field(default=None, ge=1)
    weight_decay: float = Field(default=0.0, ge=0)
    trained_part: Literal["network", "decoder"] = "network"
