"""A bundle's samples: inputs, and the outputs that its graphs must give for them."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from export.contract.arrays import HEADER_LOCK
from export.contract.manifest import BundleError
from export.contract.one_line import first_line

# N samples

Floats = NDArray[np.float32]


def read_samples(content: bytes, *, decoder: bool) -> dict[str, Floats]:
    """The arrays of a bundle's samples by name, float32 [N, ...] each.

    Args:
        content: of the file.
        decoder: whether the bundle has a decoder.

    Raises:
        BundleError: it is not an archive of such arrays.
    """
    names = ["pixels", "probabilities", "poses", *(["mask", "reconstruction"] if decoder else [])]
    try:
        samples = _load_arrays(content, names)
    except Exception as error:  # errors of numpy, zipfile and zlib share no base class
        raise BundleError(f"samples: cannot be read: {first_line(error)}") from error
    for name, array in samples.items():
        if array.dtype != np.float32 or array.ndim == 0 or len(array) == 0:
            raise BundleError(
                f"samples: {name} is {array.dtype} {list(array.shape)}; every array must be float32 and hold "
                "at least one sample"
            )
    return samples


def _load_arrays(content: bytes, names: Sequence[str]) -> dict[str, Floats]:
    archive = np.load(BytesIO(content), allow_pickle=False)
    if not isinstance(archive, NpzFile):
        raise BundleError("one array and no archive of several")
    with archive, HEADER_LOCK:
        arrays = {name: archive[name] for name in names}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of what is not in its format
            raise BundleError(f"{name} is not an array")
    return arrays
