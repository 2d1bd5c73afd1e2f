"""CIFAR-10 as its authors publish it: six batches, as Python pickles or as plain bytes, packed or unpacked.

A record of the binary version is a byte for the label and 3072 for the picture; a pickled batch is a
dictionary with `data`, uint8 [N, 3072], and `labels`, a list. A picture is 32 rows of 32 pixels, all of
them in red, then in green, then in blue. https://www.cs.toronto.edu/~kriz/cifar.html
"""

# N images, H and W height and width, C channels

import gzip
import io
import pickle
import tarfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from training.data.readers.files import find, remedy_beside
from training.data.split import Split, refuse_outside

CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE = 32  # pixels, both ways
PICTURE_BYTES = 3 * SIZE * SIZE
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}

# The binary version first: reading it runs nobody's pickle.
BINARY_FOLDER, PYTHON_FOLDER = "cifar-10-batches-bin", "cifar-10-batches-py"
BINARY_ARCHIVE, PYTHON_ARCHIVE = "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"
SOURCES = (BINARY_FOLDER, PYTHON_FOLDER, BINARY_ARCHIVE, PYTHON_ARCHIVE)


def read_split(folder: Path, split: Literal["train", "test"]) -> Split:
    """Read one split: images [N, 32, 32, 3], RGB, and labels 0 to 9, in the order of CLASS_NAMES.

    Args:
        folder: holds one of the archives, or one of the folders that they unpack to.
        split: `train` (five batches) or `test`.

    Raises:
        FileNotFoundError: neither is there, or a batch is missing.
        ValueError: a batch is damaged, another size than the others, or not what its name says.
    """
    source = find(folder, *SOURCES)
    is_binary = source.name in (BINARY_FOLDER, BINARY_ARCHIVE)
    names = [f"{name}.bin" if is_binary else name for name in BATCHES[split]]
    contents = _unpack(source, names) if source.is_file() else _read(source, names)
    parse = _parse_binary if is_binary else _parse_pickle
    batches = [parse(source / name, contents[name]) for name in names]
    for name, batch in zip(names, batches, strict=True):
        if len(batch.labels) != len(batches[0].labels):
            expected = f"{len(batches[0].labels)}, as in {names[0]}"
            raise ValueError(f"{source / name} holds {len(batch.labels)} images; expected {expected}")
    return Split(
        np.concatenate([batch.images for batch in batches]),
        np.concatenate([batch.labels for batch in batches]),
    )


def _read(folder: Path, names: list[str]) -> dict[str, bytes]:
    """The batches in an unpacked folder, by name."""
    for name in names:
        if not (folder / name).is_file():
            remedy = remedy_beside(folder, *SOURCES)
            raise FileNotFoundError(f"{name} is not in {folder}; expected {', '.join(names)}{remedy}")
    return {name: (folder / name).read_bytes() for name in names}


def _unpack(archive: Path, names: list[str]) -> dict[str, bytes]:
    """The batches in an archive, by name; nothing is written to the disk."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(archive) as plain, tarfile.open(fileobj=plain) as tar:
            for member in tar:
                name = Path(member.name).name
                if name in names and (content := tar.extractfile(member)):
                    found[name] = content.read()
            while plain.read(1 << 20):  # to the end, where the check sum is compared
                pass
    except EOFError:
        raise ValueError(f"{archive} is truncated: its gzip stream ends early") from None
    except (tarfile.TarError, OSError, zlib.error) as error:
        raise ValueError(f"{archive} is not a sound .tar.gz archive: {error}") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{archive} lacks {', '.join(missing)}; expected {', '.join(names)}")
    return found


def _parse_binary(path: Path, content: bytes) -> Split:
    """The records of a .bin file."""
    record_bytes = 1 + PICTURE_BYTES
    if not content or len(content) % record_bytes:
        raise ValueError(
            f"{path} has {len(content)} bytes; expected one or more records of {record_bytes} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record_bytes)
    return _split(path, records[:, 1:], records[:, 0].astype(np.int64))


def _parse_pickle(path: Path, content: bytes) -> Split:
    """The batch in a pickle, of which nothing but numbers, texts, lists and arrays is accepted."""
    try:
        # The official files come from Python 2; latin1 is how NumPy wants the bytes of its arrays then.
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise any exception
        raise ValueError(f"{path} is not a sound pickle of a CIFAR-10 batch: {error}") from None
    if not isinstance(batch, dict) or not {"data", "labels"} <= batch.keys():
        found = sorted(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        raise ValueError(f"{path} holds {found}; expected a dictionary with data and labels")
    data, labels = batch["data"], batch["labels"]
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PICTURE_BYTES,):
        found = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"{path}: data is {found}; expected uint8 [N, {PICTURE_BYTES}]")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise ValueError(f"{path}: labels is {type(labels).__name__}; expected a list of whole numbers")
    if len(data) == 0 or len(labels) != len(data):
        raise ValueError(f"{path} holds {len(data)} images and {len(labels)} labels; expected as many, not 0")
    try:
        numbers = np.array(labels, np.int64)
    except OverflowError:
        raise ValueError(f"{path}: a label has more than 64 bits; expected 0 to 9") from None
    return _split(path, data, numbers)


def _split(path: Path, pictures: NDArray[np.uint8], labels: NDArray[np.int64]) -> Split:
    """Pictures [N, 3072], color by color, as [N, 32, 32, 3]."""
    refuse_outside(path, "label", labels, 0, len(CLASS_NAMES) - 1)
    images = pictures.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(images), labels)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and plain values; any other name in a pickle could be code that runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            # The other arguments, align and copy, do not matter here; as the integers that old pickles hold
            # NumPy 2.4 warns of them. Made anew each time, so that no pickle can leave its mark on it.
            return lambda kind, *_: np.dtype(kind)
        if (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),  # NumPy 1
            ("numpy._core.multiarray", "_reconstruct"),
        }:
            return np.empty(0).__reduce__()[0]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
