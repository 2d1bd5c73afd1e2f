"""smallNORB's binary matrices, on small files in that format."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from training.data.datasets import sources
from training.data.readers.smallnorb import (
    GRID,
    create_matrix,
    file_name,
    open_matrix,
    read_matrix,
    read_split,
    write_matrix,
)

MAGIC = {"float32": 0x1E3D4C51, "float64": 0x1E3D4C53, "int32": 0x1E3D4C54, "uint8": 0x1E3D4C55}
MAGIC["int16"] = 0x1E3D4C56
KINDS_AND_SHAPES = [
    *((kind, (2, 3)) for kind in sorted(MAGIC)),
    *(("int32", shape) for shape in ((5,), (2, 3, 4), (2, 3, 1, 2))),
]
COUNT = 4
INFO = np.array([[4, 0, 0, 0], [6, 8, 34, 5], [7, 3, 2, 1], [9, 5, 18, 2]], np.int32)


def matrix(array: np.ndarray) -> bytes:
    """In the published format: at least three dimensions are stored, those beyond the array's own as 1."""
    shape = array.shape + (1,) * (3 - array.ndim)
    header = struct.pack(f"<II{len(shape)}I", MAGIC[array.dtype.name], array.ndim, *shape)
    return header + array.astype(array.dtype.newbyteorder("<")).tobytes()


def pairs(count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 2, 96, 96), np.uint8)


def stored(root: Path, split: str = "train", ending: str = ".gz", **changed) -> Path:
    folder = root / "smallnorb"
    folder.mkdir(exist_ok=True)
    content = {"dat": pairs(), "cat": np.arange(COUNT, dtype=np.int32), "info": INFO} | changed
    for kind, array in content.items():
        plain = matrix(array)
        path = folder / (file_name("smallnorb", split, kind) + ending)
        path.write_bytes(gzip.compress(plain, 1) if ending else plain)
    return folder


@pytest.mark.parametrize("ending", [".gz", ""])
@pytest.mark.parametrize("split", ["train", "test"])
def test_views_become_channels_and_labels_are_the_categories(tmp_path, split, ending):
    found = read_split(stored(tmp_path, split, ending), split)
    assert (found.images.dtype, found.labels.dtype) == (np.uint8, np.int64)
    assert found.images.shape == (COUNT, 96, 96, 2)
    np.testing.assert_array_equal(found.images[..., 0], pairs()[:, 0])
    np.testing.assert_array_equal(found.images[..., 1], pairs()[:, 1])
    assert found.labels.tolist() == [0, 1, 2, 3]
    assert found.images.flags.writeable
    assert found.labels.flags.writeable


def test_how_each_pair_was_taken_is_kept_in_degrees(tmp_path):
    found = read_split(stored(tmp_path), "train")
    assert found.instance.tolist() == [4, 6, 7, 9]
    assert found.elevation_degrees.tolist() == [30, 70, 45, 55]
    assert found.azimuth_degrees.tolist() == [0, 340, 20, 180]
    assert found.lighting.tolist() == [0, 5, 1, 2]


@pytest.mark.parametrize(("kind", "shape"), KINDS_AND_SHAPES)
def test_a_matrix_gives_back_the_array_written_to_it(tmp_path, kind, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    path = tmp_path / "some.mat"
    path.write_bytes(matrix(array))
    found = read_matrix(path)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(("kind", "shape"), KINDS_AND_SHAPES)
def test_a_written_matrix_has_the_published_format(tmp_path, kind, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    path = tmp_path / "some.mat"
    write_matrix(path, array)
    assert path.read_bytes() == matrix(array)


def test_a_matrix_can_be_filled_in_any_order(tmp_path):
    path = tmp_path / "some.mat"
    path.write_bytes(bytes(10_000))  # an older file leaves nothing of itself
    filled = create_matrix(path, np.dtype(np.uint8), (4, 2, 3))
    filled[[3, 1]] = 7
    filled.flush()
    np.testing.assert_array_equal(read_matrix(path)[:, 0, 0], [0, 7, 0, 7])


def test_a_matrix_can_be_changed_in_place(tmp_path):
    path = tmp_path / "some.mat"
    write_matrix(path, np.zeros((4, 2, 3), np.int32))
    open_matrix(path)[2] = 7
    np.testing.assert_array_equal(read_matrix(path)[:, 0, 0], [0, 0, 7, 0])


def test_the_names_of_files_are_the_published_ones():
    names = {file_name("smallnorb", split, kind) for split in GRID for kind in ("dat", "cat", "info")}
    assert names == {file.name.removesuffix(".gz") for file in sources()["smallnorb"].files}


def test_the_published_labels_are_a_matrix_of_the_categories_in_turn():
    content = matrix((np.arange(24_300) % 5).astype(np.int32))
    for file in sources()["smallnorb"].files:
        if file.name.endswith("-cat.mat.gz"):
            assert file.content_md5 == hashlib.md5(content).hexdigest()
            assert file.content_bytes == len(content)


def test_a_missing_file_names_file_folder_and_command(tmp_path):
    folder = stored(tmp_path)
    (folder / f"{file_name('smallnorb', 'train', 'info')}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"training-info.mat.gz nor .*download smallnorb") as error:
        read_split(folder, "train")
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "is truncated: 0 bytes, its header has at least 20"),
        (b"\x00\x00\x08\x03" + bytes(30), "magic number 0x03080000, expected one of 0x1e3d4c51"),
        (b"\x1e\x3d\x4c\x55" + bytes(30), "magic number 0x554c3d1e, expected one of 0x1e3d4c51"),
        (matrix(np.zeros(9, np.uint8))[:15], "is truncated: 15 of the header's 20 bytes"),
        (matrix(np.zeros((2, 3), np.int32))[:-1], r"is truncated: 43 bytes; its header \[2, 3\] makes 44"),
        (matrix(np.zeros(9, np.uint8)) + b"!", r"has trailing bytes: 30 bytes; its header \[9\] makes 29"),
        (struct.pack("<II", 0x1E3D4C55, 2**31) + bytes(20), "is truncated: 28 of the header's"),
        (struct.pack("<102I", 0x1E3D4C55, 100, *[1] * 100) + b"1", "has 100 dimensions; expected at most 32"),
    ],
)
def test_a_damaged_matrix_is_refused_by_name_and_fault(tmp_path, content, fault):
    path = tmp_path / "damaged.mat"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"damaged.mat .*{fault}"):
        read_matrix(path)


def test_a_gzip_stream_that_ends_early_is_truncated(tmp_path):
    folder = stored(tmp_path)
    path = folder / f"{file_name('smallnorb', 'train', 'dat')}.gz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"training-dat.mat.gz is truncated"):
        read_split(folder, "train")


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (
            {"dat": pairs()[:, :1]},
            r"dat.mat.gz holds uint8 \[4, 1, 96, 96\]; expected uint8 \[N, 2, 96, 96\]",
        ),
        ({"dat": pairs(0)}, r"dat.mat.gz holds uint8 \[0, 2, 96, 96\]; .* N not 0"),
        ({"dat": INFO}, r"dat.mat.gz holds int32 \[4, 4\]; expected uint8 \[N, 2, 96, 96\]"),
        ({"cat": INFO}, r"cat.mat.gz holds int32 \[4, 4\]; expected int32 \[N\]"),
        ({"cat": np.zeros(3, np.int32)}, "cat.mat.gz has 3 rows; expected 4, as .*-dat.mat.gz has pairs"),
        ({"info": INFO[:2]}, "info.mat.gz has 2 rows; expected 4"),
        ({"info": INFO[:, :3].copy()}, r"info.mat.gz holds int32 \[4, 3\]; expected int32 \[N, 4\]"),
        ({"cat": np.array([0, 1, 5, 0], np.int32)}, "cat.mat.gz: category 2 is 5; expected 0 to 4"),
        ({"cat": np.array([0, -1, 5, 0], np.int32)}, "cat.mat.gz: category 1 is -1; expected 0 to 4"),
        ({"info": INFO + 1}, "info.mat.gz: instance 3 is 10; expected 0 to 9"),
        ({"info": INFO + np.array([0, 1, 0, 0], np.int32)}, "elevation 1 is 9; expected 0 to 8"),
        ({"info": INFO + np.array([0, 0, 2, 0], np.int32)}, "azimuth 1 is 36; expected 0 to 34"),
        ({"info": np.abs(INFO - [0, 0, 1, 0]).astype(np.int32)}, "an azimuth is 1; expected an even number"),
        ({"info": INFO + np.array([0, 0, 0, 1], np.int32)}, "lighting 1 is 6; expected 0 to 5"),
    ],
)
def test_matrices_that_do_not_fit_are_refused_by_name_and_fault(tmp_path, changed, fault):
    with pytest.raises(ValueError, match=fault):
        read_split(stored(tmp_path, **changed), "train")
