"""Fixtures that several test files share: the real MNIST, a trained tiny run and its bundle."""

import fcntl
import gzip
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from copy import copy
from functools import cache
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from tests.support.own_iterations import compared_at_own_iterations
from training.data.datasets import load_split, sources
from training.models.cuda.device import use_full_float32

use_full_float32()  # as every command does

# An example has no time limit: one that takes long was begun on a busy machine.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# A shell starts what it runs in the background deaf to Ctrl-C, and children inherit that; tests ask some of
# theirs to hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What services of the tests derive is kept for one session, and away from the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSNET_CACHE", str(for_all(tmp_path_factory) / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _translations() -> Iterator[None]:
    """torch 2.13 puts its table of ONNX translations together anew for each export; here it does so once."""
    make = ONNXRegistry.from_torchlib

    @cache
    def made(opset_version: int) -> ONNXRegistry:
        return make(opset_version)

    def copied(opset_version: int) -> ONNXRegistry:
        registry = copy(made(opset_version))
        registry.functions = {target: [*known] for target, known in registry.functions.items()}
        return registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copied))
        yield


def pytest_xdist_auto_num_workers() -> int:
    """Processes of `-n auto`: one more than there are cores, because tests also wait."""
    return (os.cpu_count() or 1) + 1


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
        file.name for file in sources()["mnist"].files if not (Path(root) / "mnist" / file.name).is_file()
    ]
    if missing:
        pytest.skip(f"{root}/mnist lacks {', '.join(missing)}")
    return Path(root)


def for_all(factory: pytest.TempPathFactory) -> Path:
    """A folder that the test processes of one session share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "for-all"
    folder.mkdir(exist_ok=True)
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills, in the first of the test processes to come; each has its own copy."""
    own, shared = factory.mktemp(name) / name, for_all(factory) / name
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            make(own)
            shutil.copytree(own, shared)
            return own
    return Path(shutil.copytree(shared, own))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the `drawn` preset, measured: a narrow CapsNet on digits that it draws."""
    from training.cli import main

    def train(run: Path) -> None:
        fit = ["fit", "--preset", "drawn", "--epochs", "2", "--out", str(run), "--device", "cpu"]
        for command in (fit, ["evaluate", str(run), "--device", "cpu"]):
            with pytest.raises(SystemExit) as ended:
                main(command)
            assert ended.value.code == 0

    return made_once(tmp_path_factory, "drawn", train)


@pytest.fixture(scope="session")
def trained_bundle(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run exported and published: models/capsnet-drawn/1."""
    from export.bundle import publish

    def export(model: Path) -> None:
        with compared_at_own_iterations():
            publish(tiny_run, model, Path("data"))

    return made_once(tmp_path_factory, "capsnet-drawn", export) / "1"


@pytest.fixture
def own_iterations_only() -> Iterator[None]:
    with compared_at_own_iterations():
        yield


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
