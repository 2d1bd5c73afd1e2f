"""The probability from which a bundle's answers are confident, measured on images held out of training."""

# B batch, J classes

from pathlib import Path

import torch

from export.contract.confidence import threshold_of, weakest_named
from export.contract.manifest import Architecture, Confidence, read_checked, read_manifest
from export.evaluate import answers, config_to_measure
from training.config import DataConfig
from training.data.batches import Batches
from training.data.own_pictures import find_again
from training.data.run_images import training_batches
from training.evaluate.metrics import are_right


def measure_confidence(
    encoder: bytes, architecture: Architecture, held_out: Batches, name: str
) -> Confidence | None:
    """The probability that 99 % of the right answers reach; None if not one answer is right.

    Args:
        encoder: the ONNX graph's bytes.
        architecture: of the network.
        held_out: images that were held out of training for validation.
        name: the model's.
    """
    objects = held_out.config.spec.objects_per_image
    found = [
        torch.stack(
            [_weakest(probabilities, objects), are_right(probabilities, batch.targets, objects).float()]
        )
        for probabilities, batch in answers(encoder, architecture, held_out)
    ]
    weakest, is_right = torch.cat(found, dim=1)
    right, wrong = weakest[is_right == 1].numpy(), weakest[is_right == 0].numpy()
    if not len(right):
        return None
    threshold = threshold_of(right)
    return Confidence(
        min_probability=threshold,
        right=len(right),
        right_confident=int((right >= threshold).sum()),
        wrong=len(wrong),
        wrong_confident=int((wrong >= threshold).sum()),
        data=_described(held_out.config, len(weakest)),
        command=f"capsnet-export threshold models/{name}",
    )


def measure_again(bundle: Path, root: Path, images: Path | None = None) -> Confidence:
    """The threshold of a published bundle, measured now on what was held out of its training.

    Args:
        bundle: folder of the version; nothing in it is changed.
        root: holds one folder per data set.
        images: folder of the user's own pictures that it was trained on; None: where they were in training.

    Raises:
        ValueError: nothing was held out of its training, or not one answer to what was is right.
        FileNotFoundError: a file of the data set is missing; names it and the command that downloads it.
    """
    manifest = read_manifest(bundle)
    config = find_again(config_to_measure(manifest), images, bundle)
    _, held_out = training_batches(config, root)
    if held_out is None:
        raise ValueError(f"nothing was held out of the training of {bundle} to measure a threshold on")
    encoder = read_checked(bundle, manifest.graphs["encoder"])
    confidence = measure_confidence(encoder, manifest.architecture, held_out, manifest.model)
    if confidence is None:
        raise ValueError(f"{bundle} answers none of the {len(held_out)} images rightly that were held out")
    return confidence


def _weakest(probabilities: torch.Tensor, objects: int) -> torch.Tensor:
    """Of each image the least probable class that is named, [B]."""
    return torch.from_numpy(weakest_named(probabilities.numpy(), objects))


def _described(data: DataConfig, count: int) -> str:
    """What was measured on."""
    shown = "pairs of digits" if data.spec.composition == "pairs" else "images"
    known = ""
    if data.spec.tells_viewpoint:
        are_new = data.held_out == "toys" or data.familiar
        known = f"; they show toys that were {'not ' if are_new else ''}trained on"
    return f"{data.name}, {count} {shown} held out of training for validation{known}"
