"""The images of a run: what it is trained, validated and measured on."""

from pathlib import Path
from typing import Literal

import torch

from training.config import DataConfig, RunConfig
from training.data.batches import Batches, make_batches
from training.data.datasets import load_split
from training.data.images import Images, hold_out, hold_out_of_each_class, hold_out_toys
from training.data.readers.folder import read_folder, refuse_changed
from training.data.readers.smallnorb import ToySplit
from training.data.viewpoints import are_familiar


def load_images(config: RunConfig, split: Literal["train", "test"], root: Path) -> Images:
    """The images of a data set, or of the user's own folder, as they are read.

    For a run with familiar viewpoints, `train` is the training set's images from these, and `test` the test
    set's images from all others.

    Raises:
        FileNotFoundError: a file is missing; names it and the command that downloads it.
        ValueError: the run is for the user's own pictures but names no folder, or the folder has changed
            since the run was started.
    """
    data, model = config.data, config.model
    if data.familiar is not None:
        return _from_viewpoints(data, split, root, familiar=split == "train")
    if data.spec.read is not None:
        return Images.of(load_split(data.name, split, root))
    if data.folder is None or data.folder_digest is None:  # as of a preset
        raise ValueError(f"the preset {config.preset} is for your own pictures: add --images FOLDER")
    folder, size, channels = Path(data.folder), model.image_size, model.image_channels
    refuse_changed(folder, data.folder_digest)
    return Images.of(read_folder(folder, split, data.class_names, size, channels))


def _from_viewpoints(data: DataConfig, split: Literal["train", "test"], root: Path, familiar: bool) -> Images:
    """What a split shows from familiar viewpoints, or from all others."""
    assert data.familiar is not None
    found = load_split(data.name, split, root)
    return Images.of(found)[torch.from_numpy(are_familiar(found, data.familiar) == familiar)]


def training_batches(config: RunConfig, root: Path) -> tuple[Batches, Batches | None]:
    """What a run is trained on, and what it is validated on; None if `validation_images` is 0.

    Args:
        config: of the run.
        root: holds one folder per data set.

    Raises:
        FileNotFoundError, ValueError: as `load_images`.
        ValueError: there are not as many images to validate on, `epoch_images` is smaller than the training
            set, or the network does not take such images.
    """
    train, validation = _parted(config, root)
    train = _repeated(train[: config.data.training_images], config.data.epoch_images)
    classes = config.model.classes
    shown = make_batches(config.data, classes, train)
    _refuse_what_the_network_does_not_take(config, shown)
    return shown, make_batches(config.data, classes, validation) if len(validation) else None


def _refuse_what_the_network_does_not_take(config: RunConfig, shown: Batches) -> None:
    model, data = config.model, config.data
    if len(data.labels) != model.classes:
        raise ValueError(
            f"model.classes: the network has {model.classes}, the data set {data.name} {len(data.labels)}"
        )
    if data.crop_pixels is not None and data.crop_pixels > shown.size:
        raise ValueError(
            f"data.crop_pixels: no crop of {data.crop_pixels} pixels fits into images of {shown.size}"
        )
    _, channels, size, _ = next(shown.fixed(1)).pixels.shape
    if channels != model.image_channels:
        raise ValueError(
            f"model.image_channels: the network takes {model.image_channels}, images of {data.name} have "
            f"{channels}"
        )
    if size != model.image_size:
        raise ValueError(
            f"model.image_size: the network takes {model.image_size} pixels, but is shown {size}; of [data], "
            "max_shift_pixels of pairs, resize_pixels and crop_pixels change the size"
        )


def _parted(config: RunConfig, root: Path) -> tuple[Images, Images]:
    """Images to train on, and others to validate on: see `held_out` and `familiar` of `DataConfig`."""
    data = config.data
    if data.familiar is not None:
        known = _from_viewpoints(data, "test", root, familiar=True)
        if data.validation_images > len(known):
            raise ValueError(
                f"validation_images is {data.validation_images}; {len(known)} pairs have familiar viewpoints"
            )
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(config.seed))
        return load_images(config, "train", root), known[order[: data.validation_images]]
    if data.held_out == "toys" and data.validation_images:
        split = load_split(data.name, "train", root)
        assert isinstance(split, ToySplit)  # a configuration with anything else is refused
        return hold_out_toys(split, data.validation_images, config.seed)
    images = load_images(config, "train", root)
    if data.held_out == "each-class" and data.validation_images:
        return hold_out_of_each_class(images, data.validation_images, config.seed)
    return hold_out(images, data.validation_images, config.seed)


def _repeated(images: Images, epoch_images: int | None) -> Images:
    """As many images as an epoch has, each equally often or once more."""
    if epoch_images is None:
        return images
    if epoch_images < len(images):
        raise ValueError(f"epoch_images is {epoch_images}; expected at least the {len(images)} trained on")
    return images[torch.arange(epoch_images) % len(images)]


def evaluation_batches(config: RunConfig, root: Path) -> Batches:
    """What a run is measured on at the end; the arguments are those of `training_batches`."""
    return make_batches(config.data, config.model.classes, load_images(config, "test", root))
