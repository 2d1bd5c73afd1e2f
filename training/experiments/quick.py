"""The quick form of an experiment's networks: narrower, on fewer images, for minutes of a CPU."""

from dataclasses import replace

from training.config import CapsNetConfig, CnnConfig, MatrixCapsNetConfig, RunConfig

NARROWER = 8  # convolutions, by this factor
LESS_NARROW = 4  # capsule types and fully connected layers, the decoder's among them
MATRIX_NARROWER, MATRIX_TYPES_FEWER = 4, 2  # of matrix capsules, channels and types
VALIDATION_IMAGES = 1000
BATCH_SIZE = 32  # few images make enough steps
LEARNING_RATE = 0.002
QUICK_FORM = (
    "**Quick form**, not the paper's: networks are trained on fewer images in fewer steps, and narrower, as "
    f"a rule 1/{NARROWER} of the channels and 1/{LESS_NARROW} of the capsule types and of the width of fully "
    f"connected layers, the decoder's too, or of matrix capsules 1/{MATRIX_NARROWER} of the channels and "
    f"1/{MATRIX_TYPES_FEWER} of the types; in batches of {BATCH_SIZE} images at a learning rate of "
    f"{LEARNING_RATE}, whatever these are in the full form; at most {VALIDATION_IMAGES:,} images are "
    "validated on. Networks of one table may have been trained on different numbers of images, or for "
    "different numbers of epochs, so that each takes minutes: below the table stands which."
)


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
    optimizer = replace(
        config.optimizer,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        warmup_steps=0,  # so narrow a network needs none
        epochs=epochs,
        cooldown_epochs=epochs - epochs // 2,
    )
    return replace(config, model=_narrower(config.model), data=data, optimizer=optimizer)


def _narrower(
    model: CapsNetConfig | MatrixCapsNetConfig | CnnConfig,
) -> CapsNetConfig | MatrixCapsNetConfig | CnnConfig:
    match model:
        case CapsNetConfig():
            return replace(
                model,
                stem=tuple(replace(layer, channels=layer.channels // NARROWER) for layer in model.stem),
                conv_channels=model.conv_channels // NARROWER,
                primary_types=model.primary_types // LESS_NARROW,
                decoder_hidden=tuple(width // LESS_NARROW for width in model.decoder_hidden),
            )
        case MatrixCapsNetConfig():
            first, second = model.conv_caps_types
            return replace(
                model,
                conv_channels=model.conv_channels // MATRIX_NARROWER,
                primary_types=model.primary_types // MATRIX_TYPES_FEWER,
                conv_caps_types=(first // MATRIX_TYPES_FEWER, second // MATRIX_TYPES_FEWER),
                decoder_hidden=tuple(width // LESS_NARROW for width in model.decoder_hidden),
            )
        case CnnConfig():
            blocks = tuple(replace(block, channels=block.channels // NARROWER) for block in model.blocks)
            return replace(model, blocks=blocks, hidden=tuple(width // LESS_NARROW for width in model.hidden))
