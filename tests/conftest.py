"""Fixtures that several test files share: the real MNIST, a trained tiny run and its bundle."""

import gzip
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from training.data.load import load_split
from training.data.sources import SOURCES

# A shell starts what it runs in the background deaf to Ctrl-C, and children inherit that; tests ask some of
# theirs to hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What services of the tests derive is kept for one session, and away from the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSNET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test draws its untrained networks from the same seed, its wider fixtures' included."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """The data root, when it holds the real MNIST; else the test is skipped."""
    root = os.environ.get("CAPSNET_DATA")
    if not root:
        pytest.skip("CAPSNET_DATA is not set: no real MNIST here")
    missing = [
        file.name for file in SOURCES["mnist"].files if not (Path(root) / "mnist" / file.name).is_file()
    ]
    if missing:
        pytest.skip(f"{root}/mnist lacks {', '.join(missing)}")
    return Path(root)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the `drawn` preset, measured: a narrow CapsNet on digits that it draws."""
    from training.cli import main

    run = tmp_path_factory.mktemp("runs") / "drawn"
    fit = ["fit", "--preset", "drawn", "--epochs", "2", "--out", str(run), "--device", "cpu"]
    for command in (fit, ["evaluate", str(run), "--device", "cpu"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    return run


@pytest.fixture(scope="session")
def trained_bundle(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run exported and published: models/capsnet-drawn/1."""
    from export.bundle import publish

    return publish(tiny_run, tmp_path_factory.mktemp("models") / "capsnet-drawn", Path("data")).path


@pytest.fixture(scope="session")
def drawn_mnist_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root whose `mnist` is digits that the repository draws, in MNIST's own files: 600 and 200."""
    root = tmp_path_factory.mktemp("data")
    (root / "mnist").mkdir()
    for prefix, split, count in (("train", "train", 600), ("t10k", "test", 200)):
        drawn = load_split("drawn", split, root)
        images, labels = drawn.images[:count, :, :, 0], drawn.labels[:count].astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
            file = root / "mnist" / f"{prefix}-{kind}-ubyte.gz"
            file.write_bytes(gzip.compress(header + array.tobytes()))
    return root
