"""An encoder in half precision: derived when its bundle is loaded, and compared with the plain one.

Parts of export.optimize are imported late: they import onnx, which a service on a CPU need not keep in
memory.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import BundleError, Manifest
from export.contract.samples import in_pieces

# N images, H rows, W columns, C channels, J classes

Floats = NDArray[np.float32]
Encode = Callable[[Floats], Floats]  # pixels [N, H, W, C] to probabilities [N, J]


def halved(encoder: bytes, manifest: Manifest) -> bytes:
    """The encoder's graph in half precision.

    Raises:
        BundleError: it is not a graph, or one that must stay in float32; says why.
    """
    from export.optimize import half_precision

    try:
        return half_precision.halved(encoder, manifest.architecture)
    except half_precision.HalfPrecisionError as error:
        raise BundleError(f"{manifest.graphs['encoder'].file}: {error}") from error


def check_classes(half: Encode, plain: Encode, samples: Floats, objects: int, max_batch: int) -> None:
    """Check that both encoders name the same classes on some hundred images made from the samples.

    Args:
        half: in half precision, on its device.
        plain: in float32.
        samples: pixels of the bundle's samples.
        objects: objects in an image.
        max_batch: maximum images that an encoder takes at once.

    Raises:
        BundleError: a class differs, or a probability by too much.
    """
    from export.optimize.half_gate import check_generated
    from export.optimize.half_precision import HalfPrecisionError

    def of_all(encode: Encode, pixels: Floats) -> Floats:
        [probabilities] = in_pieces(lambda some: [encode(some)], max_batch, pixels)
        return probabilities

    try:
        check_generated(partial(of_all, plain), partial(of_all, half), samples, objects)
    except HalfPrecisionError as error:
        raise BundleError(f"samples: {error}") from error
