"""The quick form of an experiment's networks: narrower, on fewer images, for minutes of a CPU."""

from dataclasses import replace

from training.config import CapsNetConfig, CnnConfig, RunConfig

NARROWER = 8  # convolutions, by this factor; capsule types and fully connected layers by half of it
VALIDATION_IMAGES = 1000
BATCH_SIZE = 32  # few images make enough steps
LEARNING_RATE = 0.002


def narrowed(config: RunConfig, training_images: int, epochs: int) -> RunConfig:
    """A configuration that minutes are enough for; its results are no match for those of the full one.

    Args:
        config: the full one.
        training_images: as many are trained on, from the same set.
        epochs: passes over them; over the last half of these the rate falls to 0.
    """
    data = replace(
        config.data,
        training_images=training_images,
        validation_images=min(config.data.validation_images, VALIDATION_IMAGES),
    )
    optimiser = replace(
        config.optimiser,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        epochs=epochs,
        cooldown_epochs=epochs - epochs // 2,
    )
    return replace(config, model=_narrower(config.model), data=data, optimiser=optimiser)


def _narrower(model: CapsNetConfig | CnnConfig) -> CapsNetConfig | CnnConfig:
    match model:
        case CapsNetConfig():
            return replace(
                model,
                conv_channels=model.conv_channels // NARROWER,
                primary_types=model.primary_types * 2 // NARROWER,
                decoder_hidden=tuple(2 * width // NARROWER for width in model.decoder_hidden),
            )
        case CnnConfig():
            blocks = tuple(replace(block, channels=block.channels // NARROWER) for block in model.blocks)
            return replace(
                model, blocks=blocks, hidden=tuple(2 * width // NARROWER for width in model.hidden)
            )
