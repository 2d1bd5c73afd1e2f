"""The bytes of an `.npy` file become a batch of model inputs; no preprocessing, and never a pickle."""

import io
import math
import threading

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Preprocessing
from export.contract.pictures import PictureError

# numpy parses a header as a Python literal. CPython counts how deep that goes for all threads together (seen
# with 3.11): two at once end, now and then, with a SystemError.
HEADER_LOCK = threading.Lock()
FITTED = "to have a picture of another size fitted send it as a file, in Python as uint8 or a PIL image"


class ArrayError(PictureError):
    """An array that the model does not take; the message says what it takes and what came."""


def array_values(content: bytes, facts: Preprocessing) -> NDArray[np.generic]:
    """The values of a batch in an `.npy` file, version 1 or 2, as they are and without a copy.

    Args:
        content: uint8 0-255 or float32 0-1, [N, H, W] (models of one channel) or [N, H, W, C].
        facts: height, width and channels that the model takes.

    Returns:
        [N, H, W, C].

    Raises:
        ArrayError: not an `.npy` file, another dtype or shape, no image in it, or a body shorter or longer
            than its header claims.
    """
    file = io.BytesIO(content)
    shape, column_major, dtype = _header(file)
    if not all(type(size) is int for size in shape):  # numpy takes True for a size here, and fails later
        raise ArrayError(f"array has shape {list(shape)}; expected whole numbers")
    if dtype.newbyteorder("=") not in (np.uint8, np.float32):
        raise ArrayError(f"array is {dtype.name}; expected uint8 (0-255) or float32 (0-1)")
    shape = _with_channels(shape, facts)
    body = memoryview(content)[file.tell() :]
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise ArrayError(
            f"array of {'x'.join(map(str, shape))} {dtype.name} takes {math.prod(shape) * dtype.itemsize} "
            f"bytes after its header; {len(body)} came"
        )
    return np.frombuffer(body, dtype).reshape(shape, order="F" if column_major else "C")


def _header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether column-major, and dtype; leaves the file at the first value."""
    try:
        version = np.lib.format.read_magic(file)
        with HEADER_LOCK:
            if version == (1, 0):
                return np.lib.format.read_array_header_1_0(file)
            if version == (2, 0):
                return np.lib.format.read_array_header_2_0(file)
    except Exception as error:  # the header is a Python literal; parsing a damaged one raises all sorts
        raise ArrayError(f"expected an .npy file as numpy.save writes it: {error}") from error
    raise ArrayError(f"expected an .npy file of version 1.0 or 2.0, got {version[0]}.{version[1]}")


def _with_channels(shape: tuple[int, ...], facts: Preprocessing) -> tuple[int, ...]:
    """The shape as [N, H, W, C], if it is what the model takes."""
    frame = (facts.height, facts.width, facts.channels)
    came = f"array has shape {list(shape)}; expected [N, {', '.join(map(str, frame))}]"
    if shape in {frame, frame[:2]}:
        raise ArrayError(f"{came}: add the batch axis, array[None]")
    if len(shape) == 3 and facts.channels == 1:
        shape = (*shape, 1)
    if len(shape) != 4 or shape[1:] != frame:
        raise ArrayError(f"{came}; {FITTED}")
    if shape[0] < 1:
        raise ArrayError(f"{came} with at least one image")
    return shape


def in_range(values: NDArray[np.generic]) -> NDArray[np.float32]:
    """Values of an array, uint8 0-255 or float32 0-1, as float32 0-1, row-major; a new array.

    Raises:
        ArrayError: a value is out of range or not finite.
    """
    inputs = np.array(values, np.float32, order="C")
    if values.dtype == np.uint8:
        inputs /= np.float32(255)
        return inputs
    low, high = float(inputs.min()), float(inputs.max())  # NaN if any value is
    if not (low >= 0 and high <= 1):
        raise ArrayError(f"float32 values must be in 0-1, got {low:g} to {high:g}")
    return inputs
