"""affNIST's test set, on small .mat files."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from training.data.datasets import load_split
from training.data.readers.affnist import read_test


def pictures(count: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 40, 40), np.uint8)


def stored(root: Path, **changed) -> Path:
    folder = root / "affnist"
    folder.mkdir(exist_ok=True)
    labels = np.arange(7, dtype=np.uint8)[None]
    data = {
        "affine_params": np.zeros((6, 7)),
        "image": pictures().reshape(7, 1600).T,
        "label_int": labels,
        "label_one_of_n": np.eye(10)[labels[0]].T,
    } | changed
    data = {name: array for name, array in data.items() if array is not None}
    savemat(folder / "test.mat", {"affNISTdata": data}, do_compression=True)
    return folder


def pack(folder: Path, name: str = "test.mat") -> Path:
    path = folder / "test.mat.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "test.mat", name)
    (folder / "test.mat").unlink()
    return path


def test_images_and_labels_are_those_in_the_file(tmp_path):
    found = read_test(stored(tmp_path))
    assert (found.images.dtype, found.labels.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(found.images, pictures()[..., None])
    assert found.labels.tolist() == list(range(7))
    assert found.images.flags.writeable


def test_the_published_archive_is_read_as_it_is(tmp_path):
    pack(stored(tmp_path))
    np.testing.assert_array_equal(load_split("affnist", "test", tmp_path).images, pictures()[..., None])


def test_a_missing_file_names_file_folder_and_command(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither test.mat nor test.mat.zip .*download affnist"):
        read_test(tmp_path / "affnist")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (
            {"image": None},
            "affNISTdata has fields affine_params, label_int, .*; expected one structure with im",
        ),
        ({"image": np.zeros((784, 7), np.uint8)}, r"image is uint8 \[784, 7\]; expected uint8 \[1600, N\]"),
        ({"image": np.zeros((1600, 7))}, r"image is float64 \[1600, 7\]; expected uint8"),
        ({"image": np.zeros((1600, 6), np.uint8)}, r"image holds 6 images; label_int is \[1, 7\]"),
        ({"label_int": np.full((1, 7), 10, np.uint8)}, "label 0 is 10; expected 0 to 9"),
        ({"label_int": np.full((1, 7), 2.5)}, "label_int has 2.5; expected whole numbers"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name_and_fault(tmp_path, changed, fault):
    with pytest.raises(ValueError, match=f"test.mat: {fault}"):
        read_test(stored(tmp_path, **changed))


def test_a_file_without_the_structure_is_refused(tmp_path):
    folder = stored(tmp_path)
    savemat(folder / "test.mat", {"X": np.zeros(3)})
    with pytest.raises(ValueError, match=r"test.mat lacks affNISTdata"):
        read_test(folder)
    savemat(folder / "test.mat", {"affNISTdata": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"affNISTdata has float64 \[2, 3\]; expected one structure"):
        read_test(folder)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_an_archive_that_ends_early_is_refused_by_name(tmp_path, share):
    path = pack(stored(tmp_path))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"test.mat.zip is not a sound zip file"):
        read_test(path.parent)


def test_a_file_cut_short_beside_its_archive_says_what_helps(tmp_path):
    path = pack(stored(tmp_path))
    (path.parent / "test.mat").write_bytes(b"half of it")
    with pytest.raises(ValueError, match=r"test.mat is not a sound .*; remove test.mat to read test.mat.zip"):
        read_test(path.parent)


@pytest.mark.parametrize(
    ("place", "byte", "fault"),
    [
        (8, 1, "is encrypted, password required"),
        (10, 99, "That compression method is not supported"),
    ],
)
def test_an_archive_that_cannot_be_unpacked_is_refused_by_name(tmp_path, place, byte, fault):
    """Byte 8 of an entry in its table of contents has flags, byte 10 the method of compression."""
    path = pack(stored(tmp_path))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + place] = content[content.index(b"PK\3\4") + place - 2] = byte
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"test.mat.zip is not a sound zip file: .*{fault}"):
        read_test(path.parent)


def test_an_archive_is_not_unpacked_beyond_the_files_maximum(tmp_path, monkeypatch):
    monkeypatch.setattr("training.data.readers.affnist.MAX_BYTES", 10_000)
    path = pack(stored(tmp_path))
    size = zipfile.ZipFile(path).getinfo("test.mat").file_size
    with pytest.raises(ValueError, match=f"zip: test.mat has {size} bytes; expected at most 10000"):
        read_test(path.parent)


def test_an_archive_of_something_else_is_refused(tmp_path):
    path = pack(stored(tmp_path), "letter.txt")
    with pytest.raises(ValueError, match=r"test.mat.zip does not contain test.mat"):
        read_test(path.parent)
