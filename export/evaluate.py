"""Measure a bundle's encoder on the test images of the data set it was trained for. No torch here."""

# N images, J classes, H and W height and width, C channels

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.manifest import read_checked, read_manifest
from training.data.load import load_split

BATCH = 250


@dataclass(frozen=True)
class TestError:
    """How many of the test images the most probable class is wrong for."""

    errors: int
    images: int

    @property
    def percent(self) -> float:
        """Share of wrong answers."""
        return 100 * self.errors / self.images


def evaluate_encoder(encoder: bytes, data: str, root: Path) -> TestError:
    """Run an encoder graph over the test images of a data set.

    Args:
        encoder: the ONNX graph's bytes.
        data: name of the data set.
        root: holds one folder per data set.

    Raises:
        FileNotFoundError: a file of the data set is missing; names it and the command that downloads it.
    """
    test = load_split(data, "test", root)
    session = ort.InferenceSession(encoder, providers=["CPUExecutionProvider"])
    errors = 0
    for start in range(0, len(test.labels), BATCH):
        pixels = to_pixels(test.images[start : start + BATCH])
        [probabilities] = session.run(["probabilities"], {"pixels": pixels})
        errors += int((probabilities.argmax(axis=1) != test.labels[start : start + BATCH]).sum())
    return TestError(errors, len(test.labels))


def to_pixels(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Images [N, H, W, C], 0-255, as a graph takes them: 0 to 1."""
    pixels: NDArray[np.float32] = images.astype(np.float32) / np.float32(255)
    return pixels


def evaluate_bundle(bundle: Path, root: Path) -> TestError:
    """Measure a published bundle on the data set that its manifest says it was trained on."""
    manifest = read_manifest(bundle)
    encoder = read_checked(bundle, manifest.graphs["encoder"])
    return evaluate_encoder(encoder, manifest.training["config"]["data"]["name"], root)
