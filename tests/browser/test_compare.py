"""`python -m browser.compare`, on a test set of drawn digits in MNIST's files."""

import gzip
import subprocess
import sys

import numpy as np

from tests.support.paths import ROOT
from training.data.synthetic.drawn_digits import draw_digits


def idx(values: np.ndarray) -> bytes:
    """An IDX file, compressed."""
    head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return gzip.compress(head + values.tobytes())


def test_it_prints_how_many_images_get_other_classes_and_both_test_errors(tmp_path):
    labels = np.arange(40, dtype=np.uint8) % 10
    (tmp_path / "mnist").mkdir()
    pictures = draw_digits(labels, np.random.default_rng(1))
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(idx(pictures))
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    command = [sys.executable, "-m", "browser.compare", "models/capsnet-mnist", "--data", tmp_path]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "capsnet-mnist: 40 test images, 0 with other classes" in ran.stdout
    assert " % in float32 and " in ran.stdout


def test_own_pictures_may_be_named_and_only_they(tmp_path):
    command = [sys.executable, "-m", "browser.compare", "models/capsnet-mnist", "--images", tmp_path]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "--images is for your own pictures" in ran.stderr


def test_a_missing_test_set_is_told_in_one_line(tmp_path):
    command = [sys.executable, "-m", "browser.compare", "models/capsnet-mnist", "--data", tmp_path]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.startswith("browser.compare: ")
    assert "capsnet-train download mnist" in ran.stderr
