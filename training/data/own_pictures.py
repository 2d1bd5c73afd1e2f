"""Runs on the user's own pictures: how they are configured, and where the pictures are now."""

import logging
from dataclasses import replace
from pathlib import Path

from training.config import RunConfig
from training.data.readers.folder import (
    channels_of,
    describe_copies,
    digest_of_names,
    in_split,
    pictures_by_class,
)

logger = logging.getLogger(__name__)

VALIDATION_FRACTION = 0.1  # of the training images, unless a preset asks for fewer


def configure(preset: RunConfig, folder: Path) -> RunConfig:
    """The configuration that trains a preset's network on the pictures of a folder.

    The network gets the folder's classes and channels. Whole pictures are brought to its size, not first to
    another and then cropped, because that is how the service will show them to it.

    Args:
        preset: network, augmentation and schedule; at most its number of validation images is held out, and
            at most a tenth of the images to train on.
        folder: holds one folder per class.

    Raises:
        FileNotFoundError, ValueError: as `read_folder`.
    """
    found = pictures_by_class(folder)
    channels = channels_of(folder)
    for doubt in describe_copies(found):
        logger.warning("%s", doubt)
    train_images = sum(len(in_split(paths, "train")) for paths in found.values())
    held_out = max(1, int(VALIDATION_FRACTION * train_images))
    data = replace(
        preset.data,
        name="images",
        folder=str(folder),
        folder_digest=digest_of_names(found),
        class_names=tuple(found),
        resize_pixels=None,
        crop_pixels=None,
        held_out="images",
        familiar=None,
        validation_images=min(preset.data.validation_images, held_out),
    )
    model = replace(preset.model, classes=len(found), image_channels=channels)
    return replace(preset, data=data, model=model)


def find_again(config: RunConfig, folder: Path | None, asked_by: Path) -> RunConfig:
    """The configuration of a run, with the folder where its pictures are now.

    Args:
        config: of the run; a folder is in it as its user named it, from wherever that was.
        folder: where the pictures are, if the user says so.
        asked_by: the run, or the bundle made of it, that the pictures are wanted for.

    Raises:
        ValueError: a folder is given for a run on a data set.
        FileNotFoundError: there is no such folder; says how to name one.
    """
    if config.data.spec.read is not None:
        if folder is not None:
            raise ValueError(f"--images is for your own pictures; {asked_by} is of {config.data.name}")
        return config
    if folder is not None:
        return replace(config, data=replace(config.data, folder=str(folder)))
    known = config.data.folder
    if known is not None and not Path(known).is_dir():
        raise FileNotFoundError(
            f"{asked_by} was trained on the pictures in {known}, which is no folder here: "
            "run this where it is one, or say where the pictures are with --images FOLDER"
        )
    return config
