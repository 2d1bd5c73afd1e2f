"""Networks that tests share, as small as they can be."""

from dataclasses import replace

from training.config import MatrixCapsNetConfig, RunConfig, load_preset
from training.experiments.quick import narrowed

TINY_MATRIX = MatrixCapsNetConfig(
    architecture="matrix-capsnet",
    image_size=28,
    image_channels=1,
    conv_channels=2,
    primary_types=1,
    conv_caps_types=(2, 2),
    classes=3,
)


def tiny(preset: str, **narrower: object) -> RunConfig:
    """A preset's run of one epoch on 64 images, its network with these changes."""
    config = narrowed(load_preset(preset), 64, 1)
    data = replace(config.data, validation_images=20)
    return replace(config, model=replace(config.model, **narrower), data=data)


def tiny_toys(preset: str, epochs: int, **narrower: object) -> RunConfig:
    """A run on 64 stereo pairs of 20x20 pixels, its network with these changes."""
    config = narrowed(load_preset(preset), 64, epochs)
    data = replace(config.data, resize_pixels=24, crop_pixels=20, validation_images=60)
    return replace(config, model=replace(config.model, image_size=20, **narrower), data=data)
