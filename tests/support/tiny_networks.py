"""Networks that tests share, as small as they can be."""

from training.config import MatrixCapsNetConfig

TINY_MATRIX = MatrixCapsNetConfig(
    architecture="matrix-capsnet",
    image_size=28,
    image_channels=1,
    conv_channels=2,
    primary_types=1,
    conv_caps_types=(2, 2),
    classes=3,
)
