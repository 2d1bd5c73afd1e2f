"""MNIST, and data sets in its format such as Fashion-MNIST: four IDX files, gzip-compressed or plain.

IDX, as http://yann.lecun.com/exdb/mnist/ described it: two zero bytes, a byte for the type (0x08:
unsigned byte), a byte for the number of dimensions, each dimension as a big-endian uint32, the data.
"""

import math
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from training.data.readers.files import MAX_DIMENSIONS, find, read_content
from training.data.split import Split, refuse_outside

IMAGE_SIZE = 28  # pixels, both ways
CLASSES = 10
FASHION_CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FILE_PREFIX = {"train": "train", "test": "t10k"}
IDX_TYPES = {0x08: "uint8", 0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}


def read_split(folder: Path, split: Literal["train", "test"]) -> Split:
    """Read one split: images [N, 28, 28, 1], light on a dark background, and labels 0 to 9.

    Args:
        folder: the data set's own folder, named as `capsnet-train download` names it (`data/mnist`).
        split: `train` or `test` (the files whose names begin with t10k).

    Raises:
        FileNotFoundError: a file is missing; says where it was looked for and how to download it.
        ValueError: a file is damaged or is not what its name says; names the file.
    """
    images_path = _find(folder, f"{FILE_PREFIX[split]}-images-idx3-ubyte")
    labels_path = _find(folder, f"{FILE_PREFIX[split]}-labels-idx1-ubyte")
    images = _read_images(images_path)
    labels = _read_labels(labels_path)
    if len(images) != len(labels):
        raise ValueError(f"{images_path} holds {len(images)} images but {labels_path} {len(labels)} labels")
    return Split(images[..., None], labels.astype(np.int64))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the array of unsigned bytes in an IDX file, gzip-compressed if its name ends in .gz.

    Raises:
        ValueError: not IDX, another type than unsigned bytes, too short or too long; names the file.
    """
    content = read_content(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[3] == 0:
        raise ValueError(f"{path} is not an IDX file: it begins with {content[:4].hex(' ') or 'nothing'}")
    type_code, dimensions = content[2], content[3]
    if type_code != 0x08:
        found = IDX_TYPES.get(type_code, f"unknown type 0x{type_code:02x}")
        raise ValueError(f"{path} holds {found}; expected unsigned bytes (uint8, type 0x08)")
    header_bytes = 4 + 4 * dimensions
    if len(content) < header_bytes:
        raise ValueError(
            f"{path} is truncated: {len(content)} of the header's {header_bytes} bytes are there"
        )
    if dimensions > MAX_DIMENSIONS:
        raise ValueError(f"{path} has {dimensions} dimensions; expected at most {MAX_DIMENSIONS}")
    shape = tuple(np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).tolist())
    expected, found_bytes = header_bytes + math.prod(shape), len(content)
    if found_bytes != expected:
        fault = "is truncated" if found_bytes < expected else "has trailing bytes"
        raise ValueError(f"{path} {fault}: {found_bytes} bytes; its header {shape} makes {expected}")
    # The copy is writable, as torch.from_numpy wants its memory to be.
    return np.frombuffer(content, dtype=np.uint8, offset=header_bytes).reshape(shape).copy()


def _find(folder: Path, name: str) -> Path:
    return find(folder, f"{name}.gz", name)


def _read_images(path: Path) -> NDArray[np.uint8]:
    images = read_idx(path)
    if images.ndim != 3 or images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE):
        raise ValueError(f"{path} has shape {images.shape}; expected [N, {IMAGE_SIZE}, {IMAGE_SIZE}]")
    if len(images) == 0:
        raise ValueError(f"{path} holds no images")
    return images


def _read_labels(path: Path) -> NDArray[np.uint8]:
    labels = read_idx(path)
    if labels.ndim != 1:
        raise ValueError(f"{path} has shape {labels.shape}; expected [N]")
    refuse_outside(path, "label", labels, 0, CLASSES - 1)
    return labels
