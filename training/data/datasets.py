"""The data sets. To add one: write its reader in `readers/`, and an entry here."""

# N images, H and W height and width, C channels

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.dataset_spec import DatasetSpec, SplitName
from training.data.readers import affnist, cifar10, cifar10_jpeg, mnist, smallnorb, svhn
from training.data.source import RemoteFile, Source
from training.data.split import Split
from training.data.synthetic.drawn_digits import draw_digits

DRAWN_IMAGES = {"train": 4500, "test": 1000}
DRAWN_SEEDS = {"train": 1, "test": 2}
_NORB_TRAIN = "smallnorb-5x46789x9x18x6x2x96x96-training"
_NORB_TEST = "smallnorb-5x01235x9x18x6x2x96x96-testing"

MNIST_SOURCE = Source(
    name="mnist",
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://systemds.apache.org/assets/datasets/mnist/",
        "https://raw.githubusercontent.com/fgnt/mnist/master/",
    ),
    files=(
        RemoteFile("train-images-idx3-ubyte.gz", "6bbc9ace898e44ae57da46a324031adb", 47_040_016),
        RemoteFile("train-labels-idx1-ubyte.gz", "a25bea736e30d166cdddb491f175f624", 60_008),
        RemoteFile("t10k-images-idx3-ubyte.gz", "2646ac647ad5339dbf082846283269ea", 7_840_016),
        RemoteFile("t10k-labels-idx1-ubyte.gz", "27ae3e4e09519cfbb04c329615203637", 10_008),
    ),
)
FASHION_MNIST_SOURCE = Source(
    name="fashion-mnist",
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    files=(
        RemoteFile("train-images-idx3-ubyte.gz", "f4a8712d7a061bf5bd6d2ca38dc4d50a", 47_040_016),
        RemoteFile("train-labels-idx1-ubyte.gz", "9018921c3c673c538a1fc5bad174d6f9", 60_008),
        RemoteFile("t10k-images-idx3-ubyte.gz", "8181f5470baa50b63fa0f6fddb340f0a", 7_840_016),
        RemoteFile("t10k-labels-idx1-ubyte.gz", "15d484375f8d13e6eb1aabb0c3f46965", 10_008),
    ),
)
CIFAR10_SOURCE = Source(
    name="cifar10",
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    files=(RemoteFile("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),),
)
SVHN_SOURCE = Source(
    name="svhn",
    mirrors=("http://ufldl.stanford.edu/housenumbers/",),
    files=(
        RemoteFile("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
        RemoteFile("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
    ),
)
AFFNIST_SOURCE = Source(
    name="affnist",
    mirrors=("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",),
    files=(RemoteFile(affnist.ARCHIVE, None, affnist.MAX_BYTES),),
)
SMALLNORB_SOURCE = Source(
    name="smallnorb",
    mirrors=("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",),
    files=(
        RemoteFile(f"{_NORB_TRAIN}-dat.mat.gz", "8138a0902307b32dfa0025a36dfa45ec", 447_897_624),
        RemoteFile(f"{_NORB_TRAIN}-cat.mat.gz", "fd5120d3f770ad57ebe620eb61a0b633", 97_220),
        RemoteFile(f"{_NORB_TRAIN}-info.mat.gz", "19faee774120001fc7e17980d6960451", 388_820),
        RemoteFile(f"{_NORB_TEST}-dat.mat.gz", "e9920b7f7b2869a8f1a12e945b2c166c", 447_897_624),
        RemoteFile(f"{_NORB_TEST}-cat.mat.gz", "fd5120d3f770ad57ebe620eb61a0b633", 97_220),
        RemoteFile(f"{_NORB_TEST}-info.mat.gz", "7c5b871cc69dcadec1bf6a18141f5edc", 388_820),
    ),
)


def read_drawn(_: Path, split: SplitName) -> Split:
    """Digits that the repository draws, the same ones each time."""
    images, labels = _drawn(split)
    return Split(images.copy(), labels.copy())


@cache  # drawing them takes seconds
def _drawn(split: SplitName) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = np.arange(DRAWN_IMAGES[split]) % 10
    images = draw_digits(labels, np.random.default_rng(DRAWN_SEEDS[split]))
    return images[..., None], labels.astype(np.int64)


DIGITS = tuple("0123456789")
# Model cards are worded as those of shipped bundles, which tests compare.
CENTERED = "Trained on objects of one data set, each alone, centered and light on a plain dark ground."
SMALL_PHOTOGRAPHS = "Trained on small photographs of one object that fills most of the picture."
TOYS_TRAINED_ON = "instances 4, 6, 7, 8 and 9 of each category"
MEASURED_ON_OTHERS = "and measured on five others. A single picture, shown to it twice, is no such pair."

SPECS = (
    DatasetSpec(
        name="mnist",
        title="MNIST",
        read=mnist.read_split,
        folder="mnist",
        class_names=DIGITS,
        image_size=28,
        channels=1,
        polarity="light-on-dark",
        placement="digit",
        source=MNIST_SOURCE,
        trained_on="mnist training set",
        limits=CENTERED,
    ),
    DatasetSpec(
        name="drawn",
        title="drawn digits",
        read=read_drawn,
        folder="",
        class_names=DIGITS,
        image_size=28,
        channels=1,
        polarity="light-on-dark",
        placement="digit",
        trained_on="digits that the repository draws",
        limits=CENTERED,
    ),
    DatasetSpec(
        name="multimnist",
        title="MultiMNIST",
        read=mnist.read_split,  # pairs are made of these, see training/data/batches.py
        folder="mnist",
        class_names=DIGITS,
        image_size=28,
        channels=1,
        composition="pairs",
        polarity="light-on-dark",
        placement="fit",  # a digit may lie anywhere in the frame
        source=MNIST_SOURCE,
        trained_on="pairs of digits of the mnist training set",
        limits="Trained on two digits of different classes over each other, light on a plain dark ground: "
        "two are named in every image, also where there is one, or three, or the same digit twice.",
    ),
    DatasetSpec(
        name="shifted-mnist",
        title="shifted MNIST",
        read=mnist.read_split,
        folder="mnist",
        class_names=DIGITS,
        image_size=28,
        channels=1,
        composition="shifted",
        polarity="light-on-dark",
        placement="fit",
        source=MNIST_SOURCE,
        trained_on="digits of the mnist training set",
        limits="Trained on one upright digit anywhere in a frame, light on a plain dark background.",
    ),
    DatasetSpec(
        name="affnist",
        title="affNIST",
        read=lambda folder, _: affnist.read_test(folder),
        folder="affnist",
        class_names=DIGITS,
        image_size=40,
        channels=1,
        splits=("test",),  # what is measured on it is trained on shifted MNIST
        polarity="light-on-dark",
        placement="fit",
        source=AFFNIST_SOURCE,
    ),
    DatasetSpec(
        name="fashion-mnist",
        title="Fashion-MNIST",
        read=mnist.read_split,
        folder="fashion-mnist",
        class_names=mnist.FASHION_CLASS_NAMES,
        image_size=28,
        channels=1,
        polarity="light-on-dark",
        placement="fit",  # its makers trimmed each article and fitted it into the frame
        source=FASHION_MNIST_SOURCE,
        trained_on="fashion-mnist training set",
        limits=CENTERED,
    ),
    DatasetSpec(
        name="cifar10",
        title="CIFAR-10",
        read=cifar10.read_split,
        folder="cifar10",
        class_names=cifar10.CLASS_NAMES,
        image_size=32,
        channels=3,
        source=CIFAR10_SOURCE,
        trained_on="cifar10 training set",
        limits=SMALL_PHOTOGRAPHS,
    ),
    DatasetSpec(
        name="cifar10-jpeg",
        title="JPEG copy of CIFAR-10",
        read=cifar10_jpeg.read_split,
        folder="cifar10",
        class_names=cifar10.CLASS_NAMES,
        image_size=32,
        channels=3,
        trained_on="cifar10 training set, a copy that went through JPEG",
        limits=SMALL_PHOTOGRAPHS,
    ),
    DatasetSpec(
        name="svhn",
        title="SVHN",
        read=svhn.read_split,
        folder="svhn",
        class_names=DIGITS,
        image_size=32,
        channels=3,
        source=SVHN_SOURCE,
        trained_on="svhn training set",
        limits="Trained on photographs of house numbers, cut out around one digit; its neighbors may show.",
    ),
    DatasetSpec(
        name="smallnorb",
        title="smallNORB",
        read=smallnorb.read_split,
        folder="smallnorb",
        class_names=smallnorb.CLASS_NAMES,
        image_size=smallnorb.SIZE,
        channels=2,
        tells_viewpoint=True,
        source=SMALLNORB_SOURCE,
        trained_on=f"smallnorb training set, {TOYS_TRAINED_ON}",
        limits="Trained on gray stereo pairs of a few toys of each category, each alone on a plain ground, "
        f"{MEASURED_ON_OTHERS}",
    ),
    DatasetSpec(
        name="toys",
        title="toys",
        read=partial(smallnorb.read_split, name="toys", brought_by="make"),  # files of the same form
        folder="toys",
        class_names=smallnorb.CLASS_NAMES,
        image_size=smallnorb.SIZE,
        channels=2,
        tells_viewpoint=True,
        made=True,
        trained_on=f"stereo pairs of toys that the repository renders, {TOYS_TRAINED_ON}",
        limits="Trained on gray stereo pairs of a few rendered toys of each category, none of them "
        f"photographs, each alone on a plain ground, {MEASURED_ON_OTHERS}",
    ),
    DatasetSpec(
        name="images",
        title="your own pictures",
        read=None,  # see training/data/own_pictures.py
        folder="",
        class_names=(),
        image_size=None,
        channels=None,
        repeat_edges=True,
        placement="fit",
        trained_on="pictures of one's own, in a folder per class",
        limits="Trained on the pictures of one folder and measured on others of the same: it may go by what "
        "the pictures of a class have in common there, such as a background or a light, and then fails "
        "elsewhere.",
    ),
)
DATASETS = {spec.name: spec for spec in SPECS}


def trainable() -> list[str]:
    """Names of the data sets that a network can be trained on."""
    return [spec.name for spec in DATASETS.values() if "train" in spec.splits]


def composed() -> list[str]:
    """Names of those whose images are composed of others."""
    return [spec.name for spec in DATASETS.values() if spec.composition != "single"]


def sources() -> dict[str, Source]:
    """What can be downloaded, by name."""
    return {spec.source.name: spec.source for spec in DATASETS.values() if spec.source}


def listed(names: Iterable[str]) -> str:
    """Names in order, separated by commas."""
    return ", ".join(sorted(names))


def load_split(name: str, split: SplitName, root: Path) -> Split:
    """Images uint8 [N, H, W, C] and labels int64 [N] of a data set.

    Args:
        name: of the data set; not `images`.
        split: which images; one that it has.
        root: holds one folder per data set.

    Raises:
        FileNotFoundError: a file is missing; names it, the folder and the command that brings it.
        ValueError: a file is damaged.
        ModuleNotFoundError: SciPy is missing, which `svhn` and `affnist` need.
    """
    spec = DATASETS[name]
    assert spec.read is not None
    assert split in spec.splits  # a reader of one split does not look
    return spec.read(root / spec.folder, split)
