"""Runs on the user's own pictures: how they are configured, and where the pictures are now."""

import logging
from dataclasses import replace
from pathlib import Path

from training.config import RunConfig
from training.data.images import counts_of_each_class
from training.data.readers.folder import (
    channels_of,
    describe_copies,
    digest_of_names,
    in_split,
    pictures_by_class,
)

logger = logging.getLogger(__name__)

VALIDATION_FRACTION = 0.1  # of the training images, unless a preset asks for fewer; at least one of a class


def configure(preset: RunConfig, folder: Path) -> RunConfig:
    """The configuration that trains a preset's network on the pictures of a folder.

    The network gets the folder's classes and channels. Whole pictures are brought to its size, not first to
    another and then cropped, because that is how the service will show them to it.

    Args:
        preset: network, augmentation and schedule; its number of validation images is held out, or a tenth of
            the images to train on if that is less, but at least one of each class that has two.
        folder: holds one folder per class.

    Raises:
        FileNotFoundError, ValueError: as `read_folder`.
        ValueError: the folder's path is not UTF-8, or no class has a picture to validate on.
    """
    _refuse_what_no_json_holds(folder)
    found = pictures_by_class(folder)
    channels = channels_of(folder)
    for doubt in describe_copies(found):
        logger.warning("%s", doubt)
    for option in ("resize_pixels", "crop_pixels"):
        if pixels := getattr(preset.data, option):
            logger.warning(
                "data.%s: %d of the preset %s has no effect: whole pictures are resized to the network's %d "
                "pixels, as the service does it",
                option,
                pixels,
                preset.preset,
                preset.model.image_size,
            )
    epoch_images = preset.data.epoch_images
    if epoch_images and preset.data.name != "images":
        logger.warning(
            "data.epoch_images: %d of the preset %s has no effect: it is for the images of %s",
            epoch_images,
            preset.preset,
            preset.data.name,
        )
        epoch_images = None
    sizes = [len(in_split(paths, "train")) for paths in found.values()]
    data = replace(
        preset.data,
        name="images",
        folder=str(folder),
        folder_digest=digest_of_names(found),
        class_names=tuple(found),
        resize_pixels=None,
        crop_pixels=None,
        held_out="each-class",
        familiar=None,
        epoch_images=epoch_images,
        validation_images=_to_validate_on(preset.data.validation_images, sizes, folder),
    )
    model = replace(preset.model, classes=len(found), image_channels=channels)
    return replace(preset, data=data, model=model)


def _to_validate_on(asked: int, sizes: list[int], folder: Path) -> int:
    """How many of the images to train on are held out, of classes with so many."""
    if not asked:
        return 0
    count = sum(counts_of_each_class(sizes, min(asked, int(VALIDATION_FRACTION * sum(sizes)))))
    if not count:
        raise ValueError(
            f"{folder} holds 2 pictures of each class; expected a class with at least 3: one to learn from, "
            "one to test with, one to choose the best checkpoint with"
        )
    return count


def _refuse_what_no_json_holds(folder: Path) -> None:
    """Raise if config.json could not be read that names this folder."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"--images {str(folder)!r}: the path is not UTF-8, so no run can record it; rename the folder"
        ) from None


def find_again(config: RunConfig, folder: Path | None, asked_by: Path) -> RunConfig:
    """The configuration of a run, with the folder where its pictures are now.

    Args:
        config: of the run; a folder is in it as its user named it, from wherever that was.
        folder: where the pictures are, if the user says so.
        asked_by: the run, or the bundle made of it, that the pictures are wanted for.

    Raises:
        ValueError: a folder is given for a run on a data set, or its path is not UTF-8.
        FileNotFoundError: there is no such folder; says how to name one.
    """
    if config.data.spec.read is not None:
        if folder is not None:
            raise ValueError(f"--images is for your own pictures; {asked_by} is of {config.data.name}")
        return config
    if folder is not None:
        _refuse_what_no_json_holds(folder)
        return replace(config, data=replace(config.data, folder=str(folder)))
    known = config.data.folder
    if known is not None and not Path(known).is_dir():
        raise FileNotFoundError(
            f"{asked_by} was trained on the pictures in {known}, which is no folder here: "
            "run this where it is one, or say where the pictures are with --images FOLDER"
        )
    return config
