"""What every reader of a data set returns."""

# N images, H and W height and width, C channels

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Split:
    """Pictures and what they show.

    Attributes:
        images: uint8 [N, H, W, C], 0-255. C is 1 for gray, 3 for RGB, 2 for the views of a stereo pair.
        labels: int64 [N], from 0.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def refuse_outside(path: Path, what: str, values: NDArray[np.integer], minimum: int, maximum: int) -> None:
    """Raise unless each value of a file is in minimum..maximum.

    Args:
        path: the file they come from.
        what: one of the values: "label".
        values: integers [N].
        minimum: the smallest that may be.
        maximum: the largest that may be.

    Raises:
        ValueError: names the file and the first value outside.
    """
    wrong = np.flatnonzero((values < minimum) | (values > maximum))
    if wrong.size:
        raise ValueError(f"{path}: {what} {wrong[0]} is {values[wrong[0]]}; expected {minimum} to {maximum}")
