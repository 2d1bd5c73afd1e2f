"""The shipped model for people reads photographs of pen digits, and is not sure of what shows none."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from docs.photographs import photograph
from export.contract.manifest import read_manifest
from export.contract.pictures import read_picture
from export.contract.preprocess import to_input
from tests.support.paths import ROOT

MODEL = ROOT / "models" / "capsnet-digits"
SIZES = ((1600, 1200), (1200, 1600), (2000, 1500), (1632, 1224))
LARGE = (4000, 3000)
MAX_PIXELS = 50_000_000


@pytest.fixture(scope="module")
def bundle() -> Path:
    versions = sorted((int(path.parent.name), path.parent) for path in MODEL.glob("[0-9]*/manifest.json"))
    if not versions:
        pytest.skip(f"no bundle in {MODEL}")
    return versions[-1][1]


def probabilities(bundle: Path, files: list[bytes]) -> np.ndarray:
    """What the encoder gives for image files, [N, 10]."""
    facts = read_manifest(bundle).preprocessing
    pixels = np.stack([to_input(read_picture(content, MAX_PIXELS), facts, "auto") for content in files])
    encoder = ort.InferenceSession(bundle / "encoder.onnx", providers=["CPUExecutionProvider"])
    return encoder.run(["probabilities"], {"pixels": pixels})[0]


@pytest.mark.parametrize("count", [30, pytest.param(100, marks=pytest.mark.long)])
def test_nine_of_ten_photographed_digits_are_read(bundle, count):
    rng = np.random.default_rng(20)
    labels = np.arange(count) % 10
    files = [
        photograph(int(digit), LARGE if index % 25 == 7 else SIZES[index % 4], rng)
        for index, digit in enumerate(labels)
    ]
    right = probabilities(bundle, files).argmax(axis=1) == labels
    assert right.mean() >= 0.9, f"wrong: {[(i, int(labels[i])) for i in np.flatnonzero(~right)]}"


def test_a_photographed_blank_page_gets_no_confident_answer(bundle):
    rng = np.random.default_rng(21)
    files = [photograph(None, SIZES[index % 4], rng) for index in range(20)]
    assert probabilities(bundle, files).max() <= 0.5


def test_a_photograph_shows_ink_darker_than_paper():
    rng = np.random.default_rng(22)
    for digit in (1, 4, 8):
        gray = np.asarray(read_picture(photograph(digit, (800, 600), rng), MAX_PIXELS).convert("L"), float)
        assert np.percentile(gray, 50) - gray.min() > 30


def test_the_same_seed_takes_the_same_photograph():
    first, second = (photograph(3, (640, 480), np.random.default_rng(5)) for _ in range(2))
    assert first == second
