"""smallNORB: stereo pictures of 50 toys, https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/.

Three binary matrices per split, gzip-compressed or plain: `dat`, bytes [N, 2, 96, 96]; `cat`, integers [N];
`info`, integers [N, 4]. A matrix is little-endian: a magic number that tells its type, its number of
dimensions, each dimension (three are stored at least), the data.

`toys`, which the repository renders (`training/data/synthetic/toys`), has the same format, but other names.
"""

# N stereo pairs, H and W height and width, C views

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from training.data.readers.files import MAX_DIMENSIONS, find, read_content
from training.data.split import Split, refuse_outside

CLASS_NAMES = ("animal", "human", "airplane", "truck", "car")
SIZE = 96  # pixels, both ways
NAME = "smallnorb"
GRID = {"train": "5x46789x9x18x6x2x96x96-training", "test": "5x01235x9x18x6x2x96x96-testing"}
TYPES: dict[int, np.dtype[Any]] = {
    0x1E3D4C51: np.dtype("<f4"),
    0x1E3D4C53: np.dtype("<f8"),
    0x1E3D4C54: np.dtype("<i4"),
    0x1E3D4C55: np.dtype("u1"),
    0x1E3D4C56: np.dtype("<i2"),
}
MIN_STORED_DIMENSIONS = 3


@dataclass(frozen=True)
class ToySplit(Split):
    """Stereo pairs [N, 96, 96, 2], left view first, and how each was taken; labels are the categories.

    Attributes:
        instance: which toy of its category, int64 [N], 0 to 9; no toy is in both splits.
        elevation_degrees: of the cameras above the table, int64 [N], 30 to 70 in steps of 5.
        azimuth_degrees: of the turntable, int64 [N], 0 to 340 in steps of 20.
        lighting: which of the lights were on, int64 [N], 0 to 5.
    """

    instance: NDArray[np.int64]
    elevation_degrees: NDArray[np.int64]
    azimuth_degrees: NDArray[np.int64]
    lighting: NDArray[np.int64]


def read_split(
    folder: Path,
    split: Literal["train", "test"],
    name: str = NAME,
    brought_by: Literal["download", "make"] = "download",
) -> ToySplit:
    """Read one split.

    Args:
        folder: the data set's own folder.
        split: `train` (toys 4, 6, 7, 8, 9 of each category) or `test` (toys 0, 1, 2, 3, 5).
        name: `smallnorb` or `toys`; the files of one are never taken for the other's.
        brought_by: the command that brings the files.

    Raises:
        FileNotFoundError: a file is missing; says how to download or make it.
        ValueError: a file is damaged or is not what its name says; names the file.
    """
    files = (file_name(name, split, kind) for kind in ("dat", "cat", "info"))
    dat, cat, info = (find(folder, f"{file}.gz", file, brought_by=brought_by) for file in files)
    pairs = _read_shaped(dat, "uint8", (2, SIZE, SIZE))
    category = _read_shaped(cat, "int32", ()).astype(np.int64)
    factors = _read_shaped(info, "int32", (4,)).astype(np.int64)
    for path, matrix in ((cat, category), (info, factors)):
        if len(matrix) != len(pairs):
            raise ValueError(f"{path} has {len(matrix)} rows; expected {len(pairs)}, as {dat.name} has pairs")
    instance, elevation, azimuth, lighting = np.ascontiguousarray(factors.T)
    refuse_outside(cat, "category", category, 0, len(CLASS_NAMES) - 1)
    refuse_outside(info, "instance", instance, 0, 9)
    refuse_outside(info, "elevation", elevation, 0, 8)
    refuse_outside(info, "azimuth", azimuth, 0, 34)
    refuse_outside(info, "lighting", lighting, 0, 5)
    if (odd := azimuth[azimuth % 2 == 1]).size:  # in units of 10 degrees
        raise ValueError(f"{info}: an azimuth is {odd[0]}; expected an even number")
    return ToySplit(
        images=pairs.transpose(0, 2, 3, 1),  # a view: 0.4 GB would be copied here, and back for the network
        labels=category,
        instance=instance,
        elevation_degrees=30 + 5 * elevation,
        azimuth_degrees=10 * azimuth,
        lighting=lighting,
    )


def file_name(name: str, split: Literal["train", "test"], kind: Literal["dat", "cat", "info"]) -> str:
    """What a matrix of `smallnorb` or of `toys` is called, uncompressed."""
    return f"{name}-{GRID[split]}-{kind}.mat"


def read_matrix(path: Path) -> NDArray[Any]:
    """Read a binary matrix, gzip-compressed if its name ends in .gz.

    Raises:
        ValueError: an unknown magic number, too short or too long; names the file.
    """
    return _matrix(path, _read_bytes(path))


def open_matrix(path: Path) -> NDArray[Any]:
    """A binary matrix that is not compressed, to be changed in place; several processes may do it at once.

    Raises:
        ValueError: as `read_matrix`.
    """
    return _matrix(path, np.memmap(path, np.uint8, "r+"))


def _matrix(path: Path, content: NDArray[np.uint8]) -> NDArray[Any]:
    """What a file's bytes say, as a view of them."""
    if len(content) < 8:
        raise ValueError(f"{path} is truncated: {len(content)} bytes, its header has at least 20")
    magic, dimensions = (int(word) for word in np.frombuffer(content, "<u4", 2))
    if magic not in TYPES:
        known = ", ".join(f"0x{number:08x} ({TYPES[number].name})" for number in TYPES)
        raise ValueError(
            f"{path} is not a binary matrix: magic number 0x{magic:08x}, expected one of {known}"
        )
    header_bytes = 8 + 4 * max(dimensions, MIN_STORED_DIMENSIONS)
    if len(content) < header_bytes:
        raise ValueError(
            f"{path} is truncated: {len(content)} of the header's {header_bytes} bytes are there"
        )
    if dimensions > MAX_DIMENSIONS:
        raise ValueError(f"{path} has {dimensions} dimensions; expected at most {MAX_DIMENSIONS}")
    shape = tuple(np.frombuffer(content, "<u4", dimensions, offset=8).tolist())
    expected = header_bytes + math.prod(shape) * TYPES[magic].itemsize
    if len(content) != expected:
        fault = "is truncated" if len(content) < expected else "has trailing bytes"
        raise ValueError(f"{path} {fault}: {len(content)} bytes; its header {list(shape)} makes {expected}")
    return np.frombuffer(content, TYPES[magic], offset=header_bytes).reshape(shape)


def _read_bytes(path: Path) -> NDArray[np.uint8]:
    """What a file holds, decompressed, in memory that may be written to, as torch wants it."""
    if path.suffix != ".gz":
        return np.fromfile(path, np.uint8)
    return np.frombuffer(bytearray(read_content(path)), np.uint8)


def create_matrix(path: Path, kind: np.dtype[Any], shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[Any]]:
    """A new binary matrix to be filled in place, so that it need not fit into memory; zero before that.

    Args:
        path: the file, not compressed; one that is there is overwritten.
        kind: one of TYPES.
        shape: of at least one dimension, none of them 0.
    """
    [magic] = (magic for magic, known in TYPES.items() if known == kind)
    stored = shape + (1,) * (MIN_STORED_DIMENSIONS - len(shape))
    header = np.array([magic, len(shape), *stored], "<u4").tobytes()
    path.write_bytes(header)
    with path.open("rb+") as file:
        file.truncate(len(header) + math.prod(shape) * kind.itemsize)
    return np.memmap(path, TYPES[magic], "r+", offset=len(header), shape=shape)


def write_matrix(path: Path, array: NDArray[Any]) -> None:
    """Write a binary matrix, see `create_matrix`."""
    matrix = create_matrix(path, array.dtype, array.shape)
    matrix[...] = array
    matrix.flush()


def _read_shaped(path: Path, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A matrix [N, *shape] of the given type, N not 0."""
    matrix = read_matrix(path)
    if matrix.dtype.name != kind or matrix.ndim == 0 or matrix.shape[1:] != shape or len(matrix) == 0:
        expected = f"{kind} [{', '.join(['N', *map(str, shape)])}], N not 0"
        raise ValueError(f"{path} holds {matrix.dtype.name} {list(matrix.shape)}; expected {expected}")
    return matrix
