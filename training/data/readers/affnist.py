"""affNIST: MNIST digits under random affine transformations, https://www.cs.toronto.edu/~tijmen/affNIST/.

A file holds a structure `affNISTdata`; of its fields `image` is uint8 [1600, N], a column per picture of
40x40, row by row, and `label_int` [1, N]. The test set is `test.mat`, 32 versions of each of the 10,000 MNIST
test digits, published as `test.mat.zip`. Networks are never trained on affNIST, so its training files are
not read.
"""

# N images, H and W height and width, C channels

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.readers.files import ZIP_FAULTS, find, remedy_beside
from training.data.readers.matlab import read_variables, whole_numbers
from training.data.split import Split, refuse_outside

SIZE = 40  # pixels, both ways
FILE, ARCHIVE = "test.mat", "test.mat.zip"
MAX_BYTES = 1_000_000_000  # of either; the 320,000 pictures take 512 MB


def read_test(folder: Path) -> Split:
    """Read the test set: images [N, 40, 40, 1], light on a dark background, and labels 0 to 9.

    Args:
        folder: the data set's own folder, with `test.mat` or `test.mat.zip`.

    Raises:
        FileNotFoundError: neither is there; says how to download it.
        ValueError: the file is damaged or holds something else; names the file.
    """
    path = find(folder, FILE, ARCHIVE)
    try:
        [data] = read_variables(path, _content(path), "affNISTdata")
    except ValueError as error:
        raise ValueError(f"{error}{remedy_beside(path, ARCHIVE)}") from None
    pictures, digits = _field(path, data, "image"), _field(path, data, "label_int")
    if pictures.dtype != np.uint8 or pictures.ndim != 2 or pictures.shape[0] != SIZE * SIZE:
        found = f"{pictures.dtype} {list(pictures.shape)}"
        raise ValueError(f"{path}: image is {found}; expected uint8 [{SIZE * SIZE}, N]")
    count = pictures.shape[1]
    if count == 0 or digits.shape != (1, count):
        raise ValueError(
            f"{path}: image holds {count} images; label_int is {list(digits.shape)}, expected [1, N], N not 0"
        )
    labels = whole_numbers(path, "label_int", digits)[0]
    refuse_outside(path, "label", labels, 0, 9)
    return Split(np.ascontiguousarray(pictures.T).reshape(-1, SIZE, SIZE, 1), labels)


def _content(path: Path) -> bytes:
    """The .mat file, out of its archive if it is in one."""
    if path.suffix != ".zip":
        return path.read_bytes()
    try:
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(FILE).file_size
            if size > MAX_BYTES:
                raise ValueError(f"{path}: {FILE} has {size} bytes; expected at most {MAX_BYTES}")
            return archive.read(FILE)
    except KeyError:
        raise ValueError(f"{path} does not contain {FILE}") from None
    except ZIP_FAULTS as error:
        raise ValueError(f"{path} is not a sound zip file: {error}") from None


def _field(path: Path, data: NDArray[Any], name: str) -> NDArray[Any]:
    """A field of the structure."""
    fields = data.dtype.names
    if data.shape != (1, 1) or not fields or name not in fields:
        found = f"fields {', '.join(fields)}" if fields else f"{data.dtype} {list(data.shape)}"
        raise ValueError(f"{path}: affNISTdata has {found}; expected one structure with {name}")
    field: NDArray[Any] = data[name][0, 0]
    return field
