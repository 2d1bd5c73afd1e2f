"""CIFAR-10, or its JPEG copy where a data root holds that alone; what is measured on it bears its name."""

from dataclasses import replace
from pathlib import Path

from training.config import RunConfig
from training.data.readers.cifar10_jpeg import name_on_hand

JPEG_COPY = "cifar10-jpeg is a copy of CIFAR-10 whose pictures went through JPEG, which loses detail."


def part_of(data: str) -> str:
    """The data set that a plan names, of what a row was measured on."""
    return "cifar10" if data == "cifar10-jpeg" else data


def on_hand(config: RunConfig, root: Path) -> RunConfig:
    """A configuration on CIFAR-10, with the JPEG copy in its place if a data root holds that alone."""
    if config.data.name != "cifar10":
        return config
    return replace(config, data=replace(config.data, name=name_on_hand(root)))
