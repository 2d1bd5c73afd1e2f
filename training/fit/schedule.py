"""How the rate changes from step to step, and how many steps an epoch has."""

from training.config import OptimizerConfig

WARMUP_AT_MOST = 0.2  # of the run


def learning_rate(config: OptimizerConfig, step: int, per_epoch: int) -> float:
    """Rate of the step with this index, from 0: warm-up, exponential decay with a floor, cooldown.

    The warm-up is at most a fifth of the run. A run that is shorter than its cooldown is all cooldown.
    """
    steps = config.epochs * per_epoch
    decayed = config.learning_rate * config.decay_rate ** (step / config.decay_steps)
    rate = max(decayed, config.min_learning_rate)
    warmup = min(config.warmup_steps, steps * WARMUP_AT_MOST)
    rate *= min(1.0, (step + 1) / warmup) if warmup else 1.0
    if not config.cooldown_epochs:
        return rate
    left = steps - step
    return rate * min(1.0, left / (min(config.cooldown_epochs, config.epochs) * per_epoch))


def steps_per_epoch(config: OptimizerConfig, images: int) -> int:
    """Full batches in a pass over the images, at least 1; the rest is left out of this epoch."""
    return max(images // config.batch_size, 1)
