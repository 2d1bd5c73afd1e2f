"""Data sets by name."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch

from training.config import DataConfig
from training.data.images import Images
from training.data.load import FACTS, facts_of, load_split
from training.data.sources import SOURCES
from training.data.split import Split


def test_every_data_set_that_can_be_trained_on_or_downloaded_is_known():
    trainable = set(get_args(get_type_hints(DataConfig)["name"])) - {"images"}  # whose facts are its user's
    assert trainable <= FACTS.keys()
    assert SOURCES.keys() <= FACTS.keys()


@pytest.mark.parametrize("name", sorted(set(FACTS) - {"drawn", "toys"}))  # made here
def test_a_missing_data_set_is_an_error_with_the_command_that_downloads_it(name, tmp_path):
    downloaded = {"cifar10-jpeg": "cifar10", "multimnist": "mnist", "shifted-mnist": "mnist"}.get(name, name)
    with pytest.raises(FileNotFoundError, match=f"capsnet-train download {downloaded}"):
        load_split(name, "test", tmp_path)


def test_ones_own_pictures_have_the_classes_of_their_folder():
    own = facts_of(DataConfig(name="images", class_names=("cat", "dog")))
    assert (own.class_names, own.polarity, own.placement) == (("cat", "dog"), "any", "fit")
    assert facts_of(DataConfig(name="svhn")) == FACTS["svhn"]


def test_an_unknown_data_set_lists_those_that_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"no data set 'nmist'; there are affnist, cifar10, .*mnist"):
        load_split("nmist", "test", tmp_path)


def test_drawn_digits_are_gray_with_a_channel_axis(tmp_path):
    drawn = load_split("drawn", "test", tmp_path)
    assert drawn.images.shape == (1000, 28, 28, 1)


def test_images_have_their_channels_first_and_their_pixels_in_place():
    pictures = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)
    images = Images.of(Split(pictures, np.arange(5)))
    assert images.pixels.shape == (5, 3, 4, 6)
    assert images.pixels.is_contiguous()
    assert torch.equal(images.pixels[2, 1], torch.from_numpy(pictures[2, :, :, 1]))


def test_the_readers_import_neither_torch_nor_scipy():
    """The evaluation of a bundle reads MNIST without the training extra."""
    command = "import sys, training.data.load; sys.exit(bool({'torch', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


@pytest.mark.real_data
def test_the_source_states_the_content_of_the_real_fashion_mnist():
    folder = Path(os.environ.get("CAPSNET_DATA") or "nowhere") / "fashion-mnist"
    files = [file for file in SOURCES["fashion-mnist"].files if file.name.startswith("t10k")]
    if not all((folder / file.name).is_file() for file in files):
        pytest.skip("CAPSNET_DATA has no fashion-mnist")
    for file in files:
        content = gzip.decompress((folder / file.name).read_bytes())
        assert (hashlib.md5(content).hexdigest(), len(content)) == (file.content_md5, file.content_bytes)
    test = load_split("fashion-mnist", "test", folder.parent)
    assert np.bincount(test.labels).tolist() == [1000] * 10
    widths = [
        (test.images[test.labels == label, ..., 0].max(axis=1) > 30).sum(axis=1).mean() for label in (1, 2)
    ]
    assert widths[0] < widths[1] - 5, "trousers (1) are narrower than pullovers (2)"
