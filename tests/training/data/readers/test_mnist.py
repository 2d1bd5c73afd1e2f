import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from training.data.datasets import sources
from training.data.download import data_root
from training.data.readers.mnist import read_idx, read_split

IMAGES = "train-images-idx3-ubyte.gz"
LABELS = "train-labels-idx1-ubyte.gz"


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 0x08, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), dtype=np.uint8)


def store(path: Path, content: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def folder(tmp_path):
    """A sound data set of 12 training and 5 test images."""
    store(tmp_path / "mnist" / IMAGES, idx(images(12)))
    store(tmp_path / "mnist" / LABELS, idx(np.arange(12) % 10))
    store(tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz", idx(images(5, seed=1)))
    store(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", idx(np.arange(5)))
    return tmp_path / "mnist"


@pytest.fixture
def mnist_folder():
    """The real MNIST, or a skip that says what is missing."""
    if not os.environ.get("CAPSNET_DATA"):
        pytest.skip("CAPSNET_DATA is not set")
    folder = data_root(None) / "mnist"
    missing = [file.name for file in sources()["mnist"].files if not (folder / file.name).is_file()]
    if missing:
        pytest.skip(f"{', '.join(missing)} not in {folder}")
    return folder


def test_images_and_labels_are_those_in_the_files(folder):
    split = read_split(folder, "train")
    assert split.images.dtype == np.uint8
    assert split.labels.dtype == np.int64
    np.testing.assert_array_equal(split.images, images(12)[..., None])
    np.testing.assert_array_equal(split.labels, np.arange(12) % 10)


def test_the_test_split_is_the_t10k_files(folder):
    split = read_split(folder, "test")
    np.testing.assert_array_equal(split.images, images(5, seed=1)[..., None])
    np.testing.assert_array_equal(split.labels, np.arange(5))


def test_plain_files_are_read_like_compressed_ones(folder):
    compressed = read_split(folder, "train")
    for name in (IMAGES, LABELS):
        path = folder / name
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    plain = read_split(folder, "train")
    np.testing.assert_array_equal(plain.images, compressed.images)
    np.testing.assert_array_equal(plain.labels, compressed.labels)


def test_pixels_may_be_written_to(folder):
    assert read_split(folder, "train").images.flags.writeable


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (0, 28, 28)])
def test_an_idx_file_gives_back_the_array_written_to_it(tmp_path, shape):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(read_idx(store(tmp_path / "some.gz", idx(array))), array)


def test_a_missing_file_names_file_folder_and_command(folder):
    (folder / LABELS).unlink()
    with pytest.raises(FileNotFoundError) as error:
        read_split(folder, "train")
    message = str(error.value)
    assert LABELS in message
    assert str(folder) in message
    assert f"capsnet-train download mnist --data {folder.parent}" in message


def test_the_command_for_a_missing_file_quotes_a_folder_with_spaces(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--data '.*/my data'"):
        read_split(tmp_path / "my data" / "mnist", "train")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not an IDX file: it begins with nothing"),
        (b"\0\0\x08", "not an IDX file"),
        (b"<html>404</html>", "not an IDX file: it begins with 3c 68 74 6d"),
        (b"\0\0\x08\0", "not an IDX file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "holds float32; expected unsigned bytes"),
        (b"\0\0\x42\x01\0\0\0\x01\0", "holds unknown type 0x42; expected unsigned bytes"),
        (b"\0\0\x08\x03\0\0\0\x01\0\0", "truncated: 10 of the header's 16 bytes"),
        (idx(np.zeros(9))[:-1], r"is truncated: 16 bytes; its header \(9,\) makes 17"),
        (idx(np.zeros(9)) + b"!", r"has trailing bytes: 18 bytes; its header \(9,\) makes 17"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + b"few", "is truncated: 19 bytes"),
        (b"\0\0\x08\xc8" + b"\0\0\0\x01" * 200 + b"1", "has 200 dimensions; expected at most 32"),
    ],
)
def test_a_damaged_idx_file_is_refused_by_name_and_fault(tmp_path, content, fault):
    for name in ("damaged", "damaged.gz"):
        path = store(tmp_path / name, content)
        with pytest.raises(ValueError, match=fault) as error:
            read_idx(path)
        assert str(path) in str(error.value)


def test_a_gzip_stream_that_ends_early_is_truncated(folder):
    whole = (folder / IMAGES).read_bytes()
    (folder / IMAGES).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=f"{IMAGES} is truncated"):
        read_split(folder, "train")


@pytest.mark.parametrize("position", [0, 40, -6])
def test_a_gzip_file_with_a_wrong_byte_is_refused(folder, position):
    damaged = bytearray((folder / IMAGES).read_bytes())
    damaged[position] ^= 0xFF
    (folder / IMAGES).write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{IMAGES} is not a sound gzip file"):
        read_split(folder, "train")


def test_images_and_labels_of_different_number_are_refused(folder):
    store(folder / LABELS, idx(np.zeros(11)))
    with pytest.raises(ValueError, match=f"{IMAGES} holds 12 images but .*{LABELS} 11 labels"):
        read_split(folder, "train")


def test_a_label_over_nine_is_refused_with_its_place(folder):
    store(folder / LABELS, idx(np.array([0, 9, 10, 255] + [1] * 8)))
    with pytest.raises(ValueError, match=f"{LABELS}: label 2 is 10; expected 0 to 9"):
        read_split(folder, "train")


@pytest.mark.parametrize("shape", [(12, 28, 27), (12, 784), (12,), (12, 28, 28, 1)])
def test_images_of_another_shape_are_refused(folder, shape):
    store(folder / IMAGES, idx(np.zeros(shape)))
    with pytest.raises(ValueError, match=rf"{IMAGES} has shape .*; expected \[N, 28, 28\]"):
        read_split(folder, "train")


def test_a_file_without_images_is_refused(folder):
    store(folder / IMAGES, idx(np.zeros((0, 28, 28))))
    with pytest.raises(ValueError, match=f"{IMAGES} holds no images"):
        read_split(folder, "train")


def test_images_in_the_labels_file_are_refused(folder):
    store(folder / LABELS, idx(images(12)))
    with pytest.raises(ValueError, match=rf"{LABELS} has shape .*; expected \[N\]"):
        read_split(folder, "train")


@pytest.mark.mnist
def test_mnist_has_60000_and_10000_digits_of_all_classes(mnist_folder):
    for split, count in (("train", 60_000), ("test", 10_000)):
        digits = read_split(mnist_folder, split)
        assert digits.images.shape == (count, 28, 28, 1)
        assert digits.labels.shape == (count,)
        assert set(digits.labels.tolist()) == set(range(10))


@pytest.mark.mnist
def test_the_source_states_the_md5_and_length_of_the_real_files(mnist_folder):
    for file in sources()["mnist"].files:
        content = gzip.decompress((mnist_folder / file.name).read_bytes())
        assert hashlib.md5(content).hexdigest() == file.content_md5
        assert len(content) == file.content_bytes
