"""SVHN, cropped digits: `train_32x32.mat` and `test_32x32.mat`, http://ufldl.stanford.edu/housenumbers/.

Each holds `X`, uint8 [32, 32, 3, N], and `y`, [N, 1], in which 10 stands for the digit 0.
"""

# N images, H and W height and width, C channels

from pathlib import Path
from typing import Literal

import numpy as np

from training.data.readers.files import find
from training.data.readers.matlab import read_variables, whole_numbers
from training.data.split import Split, refuse_outside

SIZE = 32  # pixels, both ways


def read_split(folder: Path, split: Literal["train", "test"]) -> Split:
    """Read one split: images [N, 32, 32, 3], RGB, and labels 0 to 9, the digit in the middle.

    Args:
        folder: the data set's own folder.
        split: which file.

    Raises:
        FileNotFoundError: the file is missing; says how to download it.
        ValueError: the file is damaged or holds something else; names the file.
    """
    path = find(folder, f"{split}_32x32.mat")
    pictures, digits = read_variables(path, path.read_bytes(), "X", "y")
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[:3] != (SIZE, SIZE, 3):
        found = f"{pictures.dtype} {list(pictures.shape)}"
        raise ValueError(f"{path}: X is {found}; expected uint8 [{SIZE}, {SIZE}, 3, N]")
    count = pictures.shape[3]
    if count == 0 or digits.shape != (count, 1):
        raise ValueError(
            f"{path}: X holds {count} images; y is {list(digits.shape)}, expected [N, 1], N not 0"
        )
    labels = whole_numbers(path, "y", digits)[:, 0]
    refuse_outside(path, "label", labels, 1, 10)
    return Split(np.ascontiguousarray(pictures.transpose(3, 0, 1, 2)), labels % 10)
