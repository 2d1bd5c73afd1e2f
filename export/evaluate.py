"""Measure a bundle's encoder on the test images of the data set it was trained for."""

# N images, J classes, H and W height and width, C channels

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from export.contract.architecture import CPU_BATCH
from export.contract.manifest import Architecture, BundleError, Manifest, read_checked, read_manifest
from export.contract.one_line import first_line
from export.contract.samples import in_pieces
from training.config import RunConfig
from training.data.batches import Batch, Batches
from training.data.own_pictures import find_again
from training.data.run_images import evaluation_batches
from training.evaluate.metrics import Errors, exact_errors, object_errors
from training.runs.from_bundle import run_config

BATCH = 32


def evaluate_encoder(encoder: bytes, architecture: Architecture, config: RunConfig, root: Path) -> Errors:
    """Run an encoder graph over the test images of a data set.

    Args:
        encoder: the ONNX graph's bytes.
        architecture: of the network.
        config: of the run that it comes from; says which data set, and how its images are shown.
        root: holds one folder per data set.

    Raises:
        BundleError: ONNX Runtime cannot run the graph on these images, or it has other classes.
        FileNotFoundError: a file of the data set is missing; names it and the command that downloads it.
    """
    per_image = config.data.spec.objects_per_image
    images = wrong = missed = 0
    for probabilities, batch in answers(encoder, architecture, evaluation_batches(config, root)):
        images += len(batch)
        wrong += int(exact_errors(probabilities, batch.targets, per_image))
        missed += int(object_errors(probabilities, batch.targets, per_image))
    return Errors(images, wrong, per_image * images, missed)


def answers(
    encoder: bytes, architecture: Architecture, batches: Batches
) -> Iterator[tuple[torch.Tensor, Batch]]:
    """What an encoder graph makes of images, a batch at a time: probabilities [B, J], and the batch.

    Args:
        encoder: the ONNX graph's bytes.
        architecture: of the network; says how many images it takes at once.
        batches: of the images.

    Raises:
        BundleError: ONNX Runtime cannot run the graph on these images, or it has other classes.
    """
    session = None
    for batch in batches.fixed(BATCH):
        pixels = _as_taken(batch)
        try:
            session = session or ort.InferenceSession(encoder, providers=["CPUExecutionProvider"])
            [found] = in_pieces(partial(_probabilities, session), CPU_BATCH[architecture], pixels)
        except Exception as fault:  # whatever is wrong with the graph, of whoever made it
            raise BundleError(f"the encoder cannot be run: {first_line(fault)}") from fault
        if found.shape != tuple(batch.targets.shape):
            raise BundleError(f"the encoder's probabilities are {found.shape}, not {(*batch.targets.shape,)}")
        yield torch.from_numpy(found), batch


def _probabilities(session: ort.InferenceSession, pixels: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    found: list[NDArray[np.float32]] = session.run(["probabilities"], {"pixels": pixels})
    return found


def evaluate_bundle(bundle: Path, root: Path, images: Path | None = None) -> Errors:
    """Measure a published bundle on the data set that its manifest says it was trained on.

    Args:
        bundle: folder of the version.
        root: holds one folder per data set.
        images: folder of the user's own pictures that it was trained on; None: where they were in training.

    Raises:
        BundleError: a file is not what the manifest says, or its classes are not those of the data set.
        FileNotFoundError: a file of the data set is missing; names it and the command that downloads it.
    """
    manifest = read_manifest(bundle)
    config = find_again(config_to_measure(manifest), images, bundle)
    encoder = read_checked(bundle, manifest.graphs["encoder"])
    return evaluate_encoder(encoder, manifest.architecture, config, root)


def test_pixels(config: RunConfig, root: Path) -> Iterator[NDArray[np.float32]]:
    """The test images of a data set as a graph takes them, [up to 32, H, W, C], 0 to 1."""
    return map(_as_taken, evaluation_batches(config, root).fixed(BATCH))


def config_to_measure(manifest: Manifest) -> RunConfig:
    """How a bundle was trained whose answers are about the classes of its data set, in their order.

    Raises:
        BundleError: it names other classes, or there is no configuration, or it is not valid.
    """
    config = run_config(manifest)
    named = manifest.class_names, manifest.objects_per_image
    trained = config.data.labels, config.data.spec.objects_per_image
    if named != trained:
        raise BundleError(
            f"the manifest of {manifest.model} names {_objects(*named)}; trained on were {_objects(*trained)}"
        )
    return config


def _objects(class_names: tuple[str, ...], per_image: int) -> str:
    return f"{per_image} of {', '.join(class_names)} in an image"


def _as_taken(batch: Batch) -> NDArray[np.float32]:
    pixels: NDArray[np.float32] = batch.pixels.permute(0, 2, 3, 1).contiguous().numpy()
    return pixels
