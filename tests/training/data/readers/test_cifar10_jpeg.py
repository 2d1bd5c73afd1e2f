"""The JPEG copy of CIFAR-10, on small files in its format and on the real one."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.small_pictures import saved
from training.data.datasets import load_split
from training.data.readers.cifar10 import CLASS_NAMES
from training.data.readers.cifar10_jpeg import read_split


def as_jpeg(picture: np.ndarray) -> bytes:
    return saved(Image.fromarray(picture), "JPEG", quality=75)


def arrays(count: int = 4, shape: tuple[int, ...] = (32, 32, 3)) -> dict[str, np.ndarray]:
    """What a sound file holds: pictures of one gray each, so that JPEG keeps them."""
    files = [as_jpeg(np.full(shape, 40 * i, np.uint8)) for i in range(count)]
    return {
        "jpeg": np.frombuffer(b"".join(files), np.uint8),
        "offsets": np.cumsum([0, *map(len, files)]),
        "labels": np.arange(count, dtype=np.uint8) % 10,
        "classes": np.array(CLASS_NAMES),
    }


def stored(root: Path, split: str = "train", **changed) -> Path:
    folder = root / "cifar10"
    folder.mkdir(exist_ok=True)
    content = {name: array for name, array in (arrays() | changed).items() if array is not None}
    np.savez(folder / f"{split}-jpeg.npz", **content)
    return folder


def test_images_and_labels_are_those_in_the_file(tmp_path):
    split = read_split(stored(tmp_path), "train")
    assert (split.images.dtype, split.labels.dtype) == (np.uint8, np.int64)
    assert split.images.shape == (4, 32, 32, 3)
    np.testing.assert_allclose(split.images.mean(axis=(1, 2, 3)), [0, 40, 80, 120], atol=1)
    assert split.labels.tolist() == [0, 1, 2, 3]


def test_the_copy_lies_in_the_folder_of_the_original_under_a_name_of_its_own(tmp_path):
    stored(tmp_path, "test")
    assert len(load_split("cifar10-jpeg", "test", tmp_path).labels) == 4
    with pytest.raises(FileNotFoundError, match="capsnet-train download cifar10"):
        load_split("cifar10", "test", tmp_path)


def test_a_missing_copy_says_that_there_is_no_download(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"test-jpeg.npz is not in .*no download of the JPEG copy"):
        read_split(tmp_path / "cifar10", "test")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"labels": None}, "labels"),
        ({"labels": np.array([0, 1, 2, 10], np.uint8)}, ": label 3 is 10; expected 0 to 9"),
        ({"labels": np.zeros(3, np.uint8)}, "holds 3 labels and 5 offsets"),
        ({"labels": np.zeros(4)}, r"labels is float64 \[4\]; expected uint8"),
        ({"classes": np.array(CLASS_NAMES[::-1])}, r"classes is \['truck', .*; expected \['airplane'"),
        ({"offsets": np.array([0, 5, 4, 6, 7])}, "offsets do not rise from 0"),
        ({"jpeg": arrays()["jpeg"][:-1]}, "offsets do not rise from 0"),
        ({"jpeg": np.zeros_like(arrays()["jpeg"])}, "picture 0: cannot identify"),
        (arrays(shape=(32, 31, 3)), "picture 0: it is 31x32, RGB; expected 32x32, RGB"),
        (arrays(shape=(32, 32)), "picture 0: it is 32x32, L; expected 32x32, RGB"),
        ({"classes": np.array([*CLASS_NAMES], object)}, "not a sound .npz file: Object arrays"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name_and_fault(tmp_path, changed, fault):
    with pytest.raises(ValueError, match=rf"train-jpeg.npz.*{fault}"):
        read_split(stored(tmp_path, **changed), "train")


def test_a_single_array_is_refused_by_name(tmp_path):
    path = stored(tmp_path) / "train-jpeg.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(ValueError, match=r"train-jpeg.npz is not a sound .npz file: it holds one array"):
        read_split(path.parent, "train")


@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_a_file_that_ends_early_is_refused_by_name(tmp_path, share):
    path = stored(tmp_path) / "train-jpeg.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"train-jpeg.npz is not a sound .npz file"):
        read_split(path.parent, "train")


@pytest.mark.real_data
def test_the_real_test_images_are_balanced_photographs():
    root = Path(os.environ.get("CAPSNET_DATA") or "nowhere")
    if not (root / "cifar10" / "test-jpeg.npz").is_file():
        pytest.skip("CAPSNET_DATA has no cifar10/test-jpeg.npz")
    test = load_split("cifar10-jpeg", "test", root)
    assert test.images.shape == (10_000, 32, 32, 3)
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert (
        hashlib.md5(test.labels.astype(np.uint8).tobytes()).hexdigest() == "b40e448690d43ee27200192f4e306776"
    )
    # Known of CIFAR-10's test set (0.494, 0.485, 0.450); other decoders differ in single values only.
    np.testing.assert_allclose(test.images.mean(axis=(0, 1, 2)) / 255, [0.494, 0.485, 0.450], atol=0.003)
