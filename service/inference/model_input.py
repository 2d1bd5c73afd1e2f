"""From picture files to a model's input: what the service and `capsnet-score --local` share."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from export.contract.manifest import Preprocessing
from export.contract.pictures import PictureError, read_picture
from export.contract.preprocess import Rule, views_to_input


def decode_image(
    files: Sequence[bytes],
    facts: Preprocessing,
    rule: Rule,
    max_pixels: int,
    count: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Decode the files of one image, one per view, and preprocess them for the model. Blocks.

    Args:
        files: `facts.views` of them, the left view first.
        facts: the model's preprocessing.
        rule: for pictures of other sizes than the model's.
        max_pixels: of one picture.
        count: see `read_picture`.

    Returns:
        float32 [H, W, C], 0-1.

    Raises:
        PictureError: a picture cannot be read or used; its `view` is the index of the file.
    """
    views: list[Image.Image] = []
    try:
        for content in files:
            views += [read_picture(content, max_pixels, count)]
        return views_to_input(views, facts, rule)
    except PictureError as error:
        error.view = min(len(views), len(files) - 1)
        raise
