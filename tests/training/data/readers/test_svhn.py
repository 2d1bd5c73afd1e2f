"""SVHN's cropped digits, on small .mat files."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_array

from training.data.readers.svhn import read_split


def pictures(count: int = 12) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)


def stored(root: Path, split: str = "train", compress: bool = True, **changed) -> Path:
    folder = root / "svhn"
    folder.mkdir(exist_ok=True)
    labels = (np.arange(12) % 10 + 1).astype(np.uint8)[:, None]  # 1, ..., 9, 10, 1, 2
    content = {"X": pictures().transpose(1, 2, 3, 0), "y": labels} | changed
    content = {name: array for name, array in content.items() if array is not None}
    savemat(folder / f"{split}_32x32.mat", content, do_compression=compress)
    return folder


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("split", ["train", "test"])
def test_images_are_those_in_the_file_and_ten_means_zero(tmp_path, split, compress):
    found = read_split(stored(tmp_path, split, compress), split)
    assert (found.images.dtype, found.labels.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(found.images, pictures())
    assert found.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert found.images.flags.writeable
    assert found.images.flags.c_contiguous


def test_a_missing_file_names_file_folder_and_command(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"test_32x32.mat is not in .*download svhn --data") as error:
        read_split(stored(tmp_path, "train"), "test")
    assert str(tmp_path / "svhn") in str(error.value)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"y": None}, "lacks y; expected X, y, found X"),
        ({"X": None}, "lacks X; expected X, y, found y"),
        (
            {"X": np.zeros((32, 32, 12), np.uint8)},
            r"X is uint8 \[32, 32, 12\]; expected uint8 \[32, 32, 3, N\]",
        ),
        ({"X": np.zeros((32, 32, 3, 12))}, r"X is float64 \[32, 32, 3, 12\]; expected uint8"),
        ({"X": np.zeros((32, 32, 3, 11), np.uint8)}, r"X holds 11 images; y is \[12, 1\]"),
        ({"y": np.arange(12, dtype=np.uint8)[:, None]}, "label 0 is 0; expected 1 to 10"),
        ({"y": np.full((12, 1), 11, np.uint8)}, "label 0 is 11; expected 1 to 10"),
        ({"y": np.full((12, 1), 2.5)}, "y has 2.5; expected whole numbers"),
        ({"y": np.full((12, 1), np.nan)}, "y has nan; expected whole numbers"),
        ({"y": np.full((12, 1), "1", object)}, "y is object; expected whole numbers"),
        ({"y": csc_array(np.ones((12, 1)))}, r"y is csc_\w+; expected whole numbers"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name_and_fault(tmp_path, changed, fault):
    with pytest.raises(ValueError, match=rf"train_32x32.mat:? {fault}"):
        read_split(stored(tmp_path, **changed), "train")


@pytest.mark.parametrize("compress", [True, False])
def test_a_file_that_ends_early_is_refused_by_name_wherever_it_ends(tmp_path, compress):
    path = stored(tmp_path, compress=compress) / "train_32x32.mat"
    whole = path.read_bytes()
    # The last 4 bytes of the uncompressed file only fill up 8.
    for length in [0, 60, 127, 128, 130, 140, 200, len(whole) // 2, len(whole) - 40, len(whole) - 5]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"train_32x32.mat (is not a sound MATLAB 5 file|lacks)"):
            read_split(path.parent, "train")


def test_a_damaged_file_is_refused_by_name_or_read_with_sound_shapes(tmp_path):
    path = stored(tmp_path) / "train_32x32.mat"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for position in [*range(120, 200, 3), *rng.integers(0, len(whole), 40).tolist()]:
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        path.write_bytes(damaged)
        try:
            split = read_split(path.parent, "train")
        except ValueError as error:
            assert "train_32x32.mat" in str(error)  # noqa: PT017  # it need not be refused
            refused += 1
        else:
            assert split.images.shape == (12, 32, 32, 3)
    assert refused > 40


def test_a_web_page_in_place_of_the_file_is_refused(tmp_path):
    path = stored(tmp_path) / "train_32x32.mat"
    path.write_bytes(b"<html><body>404</body></html>" * 20)
    with pytest.raises(ValueError, match="is not a sound MATLAB 5 file of 580 bytes"):
        read_split(path.parent, "train")


def test_a_matlab_7_3_file_is_refused_as_such(tmp_path):
    path = stored(tmp_path) / "train_32x32.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match=r"is a MATLAB 7.3 file \(HDF5\); expected MATLAB 5"):
        read_split(path.parent, "train")
