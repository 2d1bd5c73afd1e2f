"""A copy of CIFAR-10 whose pictures went through JPEG: what is measured on it is not measured on CIFAR-10.

`train-jpeg.npz` and `test-jpeg.npz` hold `jpeg`, all JPEG files end to end, uint8; `offsets`, int64 [N + 1]:
picture i is jpeg[offsets[i]:offsets[i + 1]]; `labels`, uint8 [N]; `classes`, their names.
"""

# N images, H and W height and width, C channels

import io
import shlex
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from PIL import Image

from training.data.readers.cifar10 import CLASS_NAMES, SIZE, SOURCES
from training.data.readers.files import ZIP_FAULTS, MissingDataError
from training.data.split import Split, refuse_outside

ARRAYS = {"jpeg": np.uint8, "offsets": np.int64, "labels": np.uint8, "classes": np.str_}


def read_split(folder: Path, split: Literal["train", "test"]) -> Split:
    """Read one split: images [N, 32, 32, 3], RGB, and labels 0 to 9.

    The order is not that of CIFAR-10: labels run 0, 1, ..., 9, 0, 1, ...

    Args:
        folder: of the originals and of this copy alike, `cifar10`.
        split: which file.

    Raises:
        FileNotFoundError: the file is missing; it cannot be downloaded.
        ValueError: the file is damaged or holds something else; names the file.
    """
    path = folder / f"{split}-jpeg.npz"
    if not path.is_file():
        root = shlex.quote(str(folder.absolute().parent))
        raise MissingDataError(
            f"{path.name} is not in {folder.absolute()}, and there is no download of the JPEG copy; "
            f"the original is the data set cifar10: capsnet-train download cifar10 --data {root}"
        )
    arrays = _read_arrays(path)
    if tuple(arrays["classes"].tolist()) != CLASS_NAMES:
        raise ValueError(f"{path}: classes is {arrays['classes'].tolist()}; expected {list(CLASS_NAMES)}")
    labels, offsets = arrays["labels"].astype(np.int64), arrays["offsets"]
    refuse_outside(path, "label", labels, 0, len(CLASS_NAMES) - 1)
    if len(labels) == 0 or len(offsets) != len(labels) + 1:
        raise ValueError(f"{path} holds {len(labels)} labels and {len(offsets)} offsets; expected one more")
    if offsets[0] != 0 or offsets[-1] != len(arrays["jpeg"]) or (np.diff(offsets) <= 0).any():
        raise ValueError(f"{path}: offsets do not rise from 0 to the {len(arrays['jpeg'])} bytes of jpeg")
    return Split(_decode_all(path, arrays["jpeg"].tobytes(), offsets), labels)


def name_on_hand(root: Path) -> str:
    """What a data root's `cifar10` holds: `cifar10-jpeg` if it holds this copy alone, else `cifar10`."""
    folder = root / "cifar10"
    original = any((folder / name).exists() for name in SOURCES)
    return "cifar10-jpeg" if (folder / "train-jpeg.npz").exists() and not original else "cifar10"


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The four arrays, each of its type and of one dimension."""
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            arrays = {name: np.asarray(file[name]) for name in ARRAYS} if isinstance(file, NpzFile) else None
    except KeyError as error:
        raise ValueError(f"{path}: {error}; expected {', '.join(ARRAYS)}") from None
    except (*ZIP_FAULTS, ValueError) as error:
        raise ValueError(f"{path} is not a sound .npz file: {error}") from None
    if arrays is None:
        raise ValueError(f"{path} is not a sound .npz file: it holds one array")
    for name, kind in ARRAYS.items():
        if not np.issubdtype(arrays[name].dtype, kind) or arrays[name].ndim != 1:
            found = f"{arrays[name].dtype} {list(arrays[name].shape)}"
            raise ValueError(f"{path}: {name} is {found}; expected {kind.__name__} of one dimension")
    return arrays


def _decode_all(path: Path, jpeg: bytes, offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Pictures as uint8 [N, 32, 32, 3]."""
    images = np.empty((len(offsets) - 1, SIZE, SIZE, 3), np.uint8)
    for i, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        try:
            images[i] = _decode(jpeg[start:end])
        except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a bad JPEG
            raise ValueError(f"{path}: picture {i}: {error}") from None
    return images


def _decode(jpeg: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as picture:
        if (picture.size, picture.mode) != ((SIZE, SIZE), "RGB"):
            width, height = picture.size
            raise ValueError(f"it is {width}x{height}, {picture.mode}; expected {SIZE}x{SIZE}, RGB")
        return np.asarray(picture)
