"""Data sets by name."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from training.cli import main
from training.config import CapsNetConfig, DataConfig, RunConfig, from_dict, to_dict
from training.data.dataset_spec import DatasetSpec
from training.data.datasets import DATASETS, load_split, sources
from training.data.images import Images
from training.data.run_images import evaluation_batches, training_batches
from training.data.source import RemoteFile, Source
from training.data.split import Split


def test_what_is_composed_of_a_data_sets_images_is_downloaded_with_it():
    assert DATASETS["multimnist"].command == DATASETS["shifted-mnist"].command == "download mnist"
    assert sources().keys() <= DATASETS.keys()


# Made here, or the user's.
@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"drawn", "toys", "images"}))
def test_a_missing_data_set_is_an_error_with_the_command_that_downloads_it(name, tmp_path):
    downloaded = {"cifar10-jpeg": "cifar10", "multimnist": "mnist", "shifted-mnist": "mnist"}.get(name, name)
    with pytest.raises(FileNotFoundError, match=f"capsnet-train download {downloaded}"):
        load_split(name, "test", tmp_path)


def test_ones_own_pictures_have_the_classes_of_their_folder():
    own = DataConfig(name="images", class_names=("cat", "dog"))
    assert (own.labels, own.spec.polarity, own.spec.placement) == (("cat", "dog"), "any", "fit")
    assert DataConfig(name="svhn").labels == DATASETS["svhn"].class_names


def test_a_data_set_for_measuring_alone_is_refused_in_a_configuration():
    with pytest.raises(ValueError, match=r"no data set 'affnist' to train on; there are .*cifar10.*toys"):
        DataConfig(name="affnist")


STRIPES = DatasetSpec(
    name="stripes",
    title="Stripes",
    read=lambda folder, split: Split(np.load(folder / f"{split}.npy"), np.arange(40) % 2),
    folder="stripes",
    class_names=("rows", "columns"),
    image_size=20,
    channels=1,
    source=Source("stripes", ("https://example.org/",), (RemoteFile("train.npy", None, 1),)),
    trained_on="stripes, up to twenty to an image",
    limits="Trained on stripes alone.",
)


def test_a_data_set_is_added_by_one_entry(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(DATASETS, "stripes", STRIPES)
    (tmp_path / "stripes").mkdir()
    pattern = np.zeros((40, 20, 20, 1), np.uint8)
    pattern[::2, ::2] = pattern[1::2, :, ::2] = 255
    for split in ("train", "test"):
        np.save(tmp_path / "stripes" / f"{split}.npy", pattern)

    model = CapsNetConfig(image_size=20, classes=2, conv_channels=2, primary_types=1, decoder_hidden=())
    config = RunConfig(model=model, data=DataConfig(name="stripes", validation_images=10))
    train, validation = training_batches(config, tmp_path)
    assert (len(train), len(validation)) == (30, 10)
    assert len(evaluation_batches(config, tmp_path)) == 40
    assert config.data.labels == ("rows", "columns")
    assert from_dict(to_dict(config)) == config

    assert STRIPES.command == "download stripes"
    with pytest.raises(SystemExit, match="0"):
        main(["download", "--help"])
    assert "stripes" in capsys.readouterr().out


def test_drawn_digits_are_gray_with_a_channel_axis(tmp_path):
    drawn = load_split("drawn", "test", tmp_path)
    assert drawn.images.shape == (1000, 28, 28, 1)


def test_drawn_digits_that_somebody_changes_are_as_they_were_for_the_next(tmp_path):
    first = load_split("drawn", "test", tmp_path)
    kept = first.images.copy(), first.labels.copy()
    first.images[:] = first.labels[:] = 7
    again = load_split("drawn", "test", tmp_path)
    np.testing.assert_array_equal(again.images, kept[0])
    np.testing.assert_array_equal(again.labels, kept[1])


def test_images_have_their_channels_first_and_their_pixels_in_place():
    pictures = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)
    images = Images.of(Split(pictures, np.arange(5)))
    assert images.pixels.shape == (5, 3, 4, 6)
    assert images.pixels.is_contiguous()
    assert torch.equal(images.pixels[2, 1], torch.from_numpy(pictures[2, :, :, 1]))


def test_the_readers_import_neither_torch_nor_scipy():
    """The evaluation of a bundle reads MNIST without the training extra."""
    command = "import sys, training.data.datasets; sys.exit(bool({'torch', 'scipy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


@pytest.mark.real_data
def test_the_source_states_the_content_of_the_real_fashion_mnist():
    folder = Path(os.environ.get("CAPSNET_DATA") or "nowhere") / "fashion-mnist"
    files = [file for file in sources()["fashion-mnist"].files if file.name.startswith("t10k")]
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
