"""The medium form of an experiment's networks: the paper's, trained for hours of a CPU."""

from dataclasses import replace

from training.config import RunConfig

EPOCHS = 10
MEDIUM_FORM = (
    f"**Medium form**: the paper's networks, trained for {EPOCHS} epochs; over the second half of these the "
    "rate falls linearly to 0."
)


def shortened(config: RunConfig) -> RunConfig:
    """The same network with the same images, for a tenth of the paper's epochs or fewer."""
    optimizer = replace(config.optimizer, epochs=EPOCHS, cooldown_epochs=EPOCHS - EPOCHS // 2)
    return replace(config, optimizer=optimizer)
