"""CIFAR-10 in both published versions, packed and unpacked, on small files in those formats."""

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from training.data.readers.cifar10 import BATCHES, CLASS_NAMES, read_split

BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
PER_BATCH = 3


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 with NumPy 1 wrote, as the published batches were: bytes and texts are `str`."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_str(self, value):
        content = value if isinstance(value, bytes) else value.encode("latin1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_str

    def save_global(self, value, name=None):
        module = "numpy.core.multiarray" if value.__name__ == "_reconstruct" else "numpy"
        self.write(pickle.GLOBAL + f"{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch[type] = dispatch[type(np.empty(0).__reduce__()[0])] = save_global

    def save_dtype(self, value):
        self.save_reduce(np.dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0), obj=value)

    dispatch[type(np.dtype("u1"))] = save_dtype


def python2_pickle(value) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, 2).dump(value)
    return file.getvalue()


def pictures(seed: int, count: int = PER_BATCH) -> np.ndarray:
    """Images [N, 32, 32, 3], each with colors of its own."""
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def digits(seed: int, count: int = PER_BATCH) -> np.ndarray:
    return (np.arange(count) + 3 * seed) % 10


def color_by_color(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def binary_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return np.concatenate([labels[:, None].astype(np.uint8), color_by_color(images)], axis=1).tobytes()


def python_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return python2_pickle(
        {
            "batch_label": "training batch 1 of 5",
            "labels": labels.tolist(),
            "data": color_by_color(images),
            "filenames": ["plane.png"] * len(labels),
        }
    )


def batches(kind: str) -> dict[str, bytes]:
    """All six batches of a version, by file name."""
    write, ending = (binary_batch, ".bin") if kind == BINARY else (python_batch, "")
    names = [name for split in BATCHES.values() for name in split]
    return {f"{name}{ending}": write(pictures(seed), digits(seed)) for seed, name in enumerate(names)}


def unpacked(folder: Path, kind: str) -> Path:
    (folder / kind).mkdir(parents=True)
    for name, content in batches(kind).items():
        (folder / kind / name).write_bytes(content)
    return folder


def packed(folder: Path, kind: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    archive = {BINARY: "cifar-10-binary.tar.gz", PYTHON: "cifar-10-python.tar.gz"}[kind]
    with tarfile.open(folder / archive, "w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **batches(kind)}.items():
            member = tarfile.TarInfo(f"{kind}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return folder


@pytest.mark.parametrize("kind", [BINARY, PYTHON])
@pytest.mark.parametrize("form", [unpacked, packed])
def test_images_and_labels_are_those_in_the_files_in_their_order(tmp_path, form, kind):
    folder = form(tmp_path / "cifar10", kind)
    train, test = read_split(folder, "train"), read_split(folder, "test")
    assert (train.images.dtype, train.labels.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(train.images, np.concatenate([pictures(seed) for seed in range(5)]))
    np.testing.assert_array_equal(train.labels, np.concatenate([digits(seed) for seed in range(5)]))
    np.testing.assert_array_equal(test.images, pictures(5))
    np.testing.assert_array_equal(test.labels, digits(5))
    assert train.images.flags.writeable
    assert test.images.flags.writeable


def test_a_batch_pickled_anew_is_read_too(tmp_path):
    folder = unpacked(tmp_path / "cifar10", PYTHON)
    again = {"data": color_by_color(pictures(5)), "labels": digits(5).tolist()}
    (folder / PYTHON / "test_batch").write_bytes(pickle.dumps(again, protocol=4))
    np.testing.assert_array_equal(read_split(folder, "test").images, pictures(5))


def test_classes_are_in_the_published_order():
    published = "airplane automobile bird cat deer dog frog horse ship truck"
    assert " ".join(CLASS_NAMES) == published


class Malice:
    def __init__(self, target, *arguments):
        self.target, self.arguments = target, arguments

    def __reduce__(self):
        return self.target, self.arguments


@pytest.mark.parametrize(("target", "protocol"), [(os.mkdir, 0), (eval, 2), (print, 4), (np.load, 2)])
def test_a_pickle_that_asks_for_code_is_refused_before_any_of_it_runs(
    tmp_path, monkeypatch, target, protocol
):
    folder = unpacked(tmp_path / "cifar10", PYTHON)
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"data": Malice(target, "'owned'"), "labels": []}, protocol)
    (folder / PYTHON / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match=r"test_batch is not a sound pickle.*asks for \w+\.\w+") as error:
        read_split(folder, "test")
    assert str(folder) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar10"]


def test_every_beginning_of_a_pickle_is_refused_with_its_name(tmp_path):
    folder = unpacked(tmp_path / "cifar10", PYTHON)
    path = folder / PYTHON / "test_batch"
    whole = path.read_bytes()
    for length in [*range(0, 400, 7), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="test_batch is not a sound pickle"):
            read_split(folder, "test")


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        ([1, 2], "holds list; expected a dictionary with data and labels"),
        ({"data": np.zeros((2, 3072), np.uint8)}, r"holds \['data'\]; expected a dictionary"),
        ({"data": [0], "labels": [0]}, "data is list; expected uint8"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [0, 0]}, r"data is uint8 \[2, 3071\]; expected"),
        ({"data": np.zeros((2, 3072)), "labels": [0, 0]}, r"data is float64 \[2, 3072\]; expected uint8"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": "00"}, "labels is str; expected a list"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "holds 2 images and 1 labels"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "holds 0 images and 0 labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [9, 10]}, "label 1 is 10; expected 0 to 9"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [9, 2**70]}, "a label has more than 64 bits"),
    ],
)
def test_a_pickle_of_something_else_is_refused_by_name_and_fault(tmp_path, batch, fault):
    folder = unpacked(tmp_path / "cifar10", PYTHON)
    (folder / PYTHON / "test_batch").write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(ValueError, match=f"test_batch:? {fault}"):
        read_split(folder, "test")


@pytest.mark.parametrize("change", [-1, 1, -3073 * PER_BATCH])
def test_a_binary_batch_that_is_not_whole_records_is_refused(tmp_path, change):
    folder = unpacked(tmp_path / "cifar10", BINARY)
    path = folder / BINARY / "test_batch.bin"
    whole = path.read_bytes() + b"!"
    path.write_bytes(whole[: len(whole) - 1 + change])
    found = 3073 * PER_BATCH + change
    with pytest.raises(ValueError, match=f"test_batch.bin has {found} bytes; expected .* records of 3073"):
        read_split(folder, "test")


def test_a_batch_cut_between_records_differs_from_the_others_and_is_refused(tmp_path):
    folder = unpacked(tmp_path / "cifar10", BINARY)
    path = folder / BINARY / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-3073])
    with pytest.raises(ValueError, match=r"data_batch_3.bin holds 2 images; expected 3, as in data_batch_1"):
        read_split(folder, "train")


def test_a_label_over_nine_is_refused_with_its_place(tmp_path):
    folder = unpacked(tmp_path / "cifar10", BINARY)
    (folder / BINARY / "test_batch.bin").write_bytes(binary_batch(pictures(0), np.array([0, 9, 12])))
    with pytest.raises(ValueError, match=r"test_batch.bin: label 2 is 12; expected 0 to 9"):
        read_split(folder, "test")


def test_a_missing_set_names_what_was_looked_for_and_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match="capsnet-train download cifar10") as error:
        read_split(tmp_path / "cifar10", "train")
    assert "cifar-10-binary.tar.gz" in str(error.value)
    assert str(tmp_path / "cifar10") in str(error.value)


def test_a_missing_batch_is_named(tmp_path):
    folder = unpacked(tmp_path / "cifar10", PYTHON)
    (folder / PYTHON / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_4 is not in .*cifar-10-batches-py"):
        read_split(folder, "train")


def test_an_incomplete_folder_beside_an_archive_says_what_helps(tmp_path):
    folder = packed(unpacked(tmp_path / "cifar10", PYTHON), BINARY)
    (folder / PYTHON / "data_batch_4").unlink()
    remedy = "; remove cifar-10-batches-py to read cifar-10-binary.tar.gz beside it"
    with pytest.raises(FileNotFoundError, match=f"data_batch_4 is not in .*{remedy}"):
        read_split(folder, "train")


@pytest.mark.parametrize("kept", [0, 10, 0.5, -9])
def test_an_archive_that_ends_early_is_refused_by_name(tmp_path, kept):
    path = packed(tmp_path / "cifar10", BINARY) / "cifar-10-binary.tar.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz (is truncated|is not a sound|lacks)"):
        read_split(path.parent, "test")


def test_an_archive_of_something_else_lacks_the_batches(tmp_path):
    (tmp_path / "cifar10").mkdir()
    with tarfile.open(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("letter.txt"))
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz lacks test_batch.bin"):
        read_split(tmp_path / "cifar10", "test")
