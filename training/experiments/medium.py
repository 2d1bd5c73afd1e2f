"""Networks of an experiment that are trained for another number of epochs, as in its medium form."""

from dataclasses import replace

from training.config import RunConfig


def for_epochs(config: RunConfig, epochs: int) -> RunConfig:
    """The same network with the same images, for so many epochs; over the last half the rate falls to 0."""
    optimizer = replace(config.optimizer, epochs=epochs, cooldown_epochs=epochs - epochs // 2)
    return replace(config, optimizer=optimizer)


def medium_form(networks: str, epochs: int) -> str:
    """What a report says of such networks, Markdown.

    Args:
        networks: which they are, such as "the paper's networks".
        epochs: for how many each is trained.
    """
    return (
        f"**Medium form**: {networks}, trained for {epochs} epochs; over the last {epochs - epochs // 2} of "
        "these the rate falls linearly to 0."
    )
