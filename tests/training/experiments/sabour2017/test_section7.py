"""CIFAR-10, smallNORB and SVHN as Sec. 7 has them, on small sets in the published formats."""

import gzip
import shutil
import struct
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from tests.support.figures import areas
from tests.support.small_pictures import saved
from tests.support.smallnorb_files import TOYS
from tests.support.train_command import status
from training.data.readers.cifar10 import CLASS_NAMES
from training.data.readers.files import MissingDataError
from training.data.readers.smallnorb import file_name
from training.data.run_images import evaluation_batches
from training.evaluate.evaluation import evaluate
from training.experiments import figure
from training.experiments.cifar10_copy import on_hand
from training.experiments.runner import Runner
from training.experiments.sabour2017.section7 import EXPERIMENTS, Plan
from training.runs import checkpoint

COUNT = {"train": 100, "test": 60}
cifar10, smallnorb, svhn = (EXPERIMENTS[name] for name in ("cifar10", "smallnorb", "svhn"))


def pictures(count: int, classes: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Noise on a brightness of the class's own, channels last, and labels in turn."""
    labels = np.arange(count) % classes
    noise = np.random.default_rng(count).integers(0, 60, (count, *shape))
    return (noise + 18 * labels.reshape(-1, 1, 1, 1)).astype(np.uint8), labels


def store_cifar10(root: Path) -> None:
    """The binary version."""
    folder = root / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    images, labels = pictures(COUNT["train"], 10, (32, 32, 3))
    for batch in range(5):
        part = slice(batch * 20, batch * 20 + 20)
        (folder / f"data_batch_{batch + 1}.bin").write_bytes(cifar_records(images[part], labels[part]))
    (folder / "test_batch.bin").write_bytes(cifar_records(*pictures(COUNT["test"], 10, (32, 32, 3))))


def cifar_records(images: np.ndarray, labels: np.ndarray) -> bytes:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels.astype(np.uint8)[:, None], planes], axis=1).tobytes()


def store_cifar10_jpeg(root: Path) -> None:
    (root / "cifar10").mkdir(parents=True, exist_ok=True)
    for split, count in COUNT.items():
        images, labels = pictures(count, 10, (32, 32, 3))
        files = [as_jpeg(image) for image in images]
        np.savez(
            root / "cifar10" / f"{split}-jpeg.npz",
            jpeg=np.frombuffer(b"".join(files), np.uint8),
            offsets=np.cumsum([0, *map(len, files)]),
            labels=labels.astype(np.uint8),
            classes=np.array(CLASS_NAMES),
        )


def as_jpeg(picture: np.ndarray) -> bytes:
    return saved(Image.fromarray(picture), "JPEG")


def store_smallnorb(root: Path) -> None:
    (root / "smallnorb").mkdir(parents=True)
    for split, count in COUNT.items():
        images, labels = pictures(count, 5, (96, 96, 2))
        pairs = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        info = np.zeros((count, 4), np.int32)
        info[:, 0] = np.array(TOYS[split])[np.arange(count) // 5 % 5]
        for kind, array in {"dat": pairs, "cat": labels.astype(np.int32), "info": info}.items():
            shape = array.shape + (1,) * (3 - array.ndim)
            magic = 0x1E3D4C55 if array.dtype == np.uint8 else 0x1E3D4C54
            header = struct.pack(f"<II{len(shape)}I", magic, array.ndim, *shape)
            file = root / "smallnorb" / f"{file_name('smallnorb', split, kind)}.gz"
            file.write_bytes(gzip.compress(header + array.tobytes(), 1))


def store_svhn(root: Path) -> None:
    (root / "svhn").mkdir(parents=True)
    for split, count in COUNT.items():
        images, labels = pictures(count, 10, (32, 32, 3))
        digits = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(root / "svhn" / f"{split}_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": digits})


STORE = {
    "cifar10": (cifar10, store_cifar10),
    "cifar10-jpeg": (cifar10, store_cifar10_jpeg),
    "smallnorb": (smallnorb, store_smallnorb),
    "svhn": (svhn, store_svhn),
}


def tiny(plan: Plan, seeds: tuple[int, ...]) -> Plan:
    """A plan's network, as narrow as in its quick form, after two steps."""
    config = plan.network
    data = replace(config.data, training_images=64, validation_images=20)
    optimizer = replace(config.optimizer, epochs=1, cooldown_epochs=1)
    model = replace(config.model, conv_channels=8, primary_types=2)
    return Plan(replace(config, data=data, optimizer=optimizer, model=model), seeds)


def lab_in(folder: Path, root: Path) -> Runner:
    return Runner(folder / "out", folder / "networks", root, torch.device("cpu"))


@pytest.fixture(scope="module", params=STORE)
def measured(request, tmp_path_factory):
    """An experiment on a small data set, carried out."""
    folder = tmp_path_factory.mktemp(request.param)
    experiment, store = STORE[request.param]
    store(folder / "data")
    runner = lab_in(folder, folder / "data")
    experiment.run(runner, tiny(experiment.QUICK, (0, 1, 2)))
    return request.param, experiment, runner


def networks(runner: Runner):
    """Each trained network and its run's configuration, by seed."""
    for row in runner.rows():
        if "seed" in row:
            run = runner.networks / row["network"]
            best = checkpoint.best_checkpoint(run)
            yield checkpoint.load_model(run, best, runner.device).eval(), checkpoint.read_config(run)


def test_the_error_of_each_network_is_that_of_an_evaluation(measured):
    name, _, runner = measured
    rows = [row for row in runner.rows() if "seed" in row]
    assert [row["seed"] for row in rows] == [0, 1, 2]
    for row, (model, config) in zip(rows, networks(runner), strict=True):
        found = evaluate(model, evaluation_batches(config, runner.root), config.loss)
        assert config.data.name == row["data"] == name
        assert (row["error_percent"], row["images"]) == (found.error_percent, found.images)
        assert row["images"] == COUNT["test"]


def test_the_error_of_networks_together_is_that_of_their_summed_lengths(measured):
    _, _, runner = measured
    lengths = []
    for model, config in networks(runner):
        batch = next(evaluation_batches(config, runner.root).fixed(COUNT["test"]))
        with torch.no_grad():
            lengths.append(model(batch.pixels).square().sum(dim=2).sqrt())
    for row in [row for row in runner.rows() if "networks" in row]:
        choices = combinations(lengths, row["networks"])
        answers = [sum(choice).argmax(dim=1) for choice in choices]
        truth = batch.targets.argmax(dim=1)
        errors = [100 * (answer != truth).double().mean().item() for answer in answers]
        assert row["errors_percent"] == pytest.approx(errors)
    assert sorted(row["networks"] for row in runner.rows() if "networks" in row) == [2, 3]


def test_errors_of_the_classes_make_up_the_error(measured):
    _, _, runner = measured
    for row in runner.rows():
        if "seed" in row:  # the test set has as many images of each class
            assert np.mean(row["class_error_percent"]) == pytest.approx(row["error_percent"])


def test_a_run_that_goes_on_measures_nothing_twice(measured, tmp_path):
    _, experiment, runner = measured
    again = Runner(tmp_path / "out", tmp_path / "no networks", runner.root, runner.device)
    shutil.copytree(runner.out, again.out)
    whole = (again.out / "rows.jsonl").read_text().splitlines(keepends=True)
    (again.out / "rows.jsonl").write_text("".join(whole[:-1]))  # stopped before the last
    experiment.run(again, tiny(experiment.QUICK, (0, 1, 2)))
    assert [row | {"command": ""} for row in again.rows()] == [row | {"command": ""} for row in runner.rows()]
    assert not again.networks.exists(), "a network was trained again"


def test_the_report_names_the_data_and_has_the_papers_number(measured):
    name, experiment, runner = measured
    text = experiment.report(runner.rows())
    assert f"Measured on the {COUNT['test']} test images of {name}." in text
    assert str(experiment.PAPER.error_percent) in text
    assert ("This is not cifar10" in text) == (name == "cifar10-jpeg")


def test_the_figure_has_our_errors_and_the_papers(measured, tmp_path):
    _, experiment, runner = measured
    experiment.plot(runner.rows(), tmp_path / "figure.png")
    legend = 1
    assert areas(tmp_path / "figure.png", figure.OURS) > legend
    assert areas(tmp_path / "figure.png", figure.PAPER) == 1 + legend


def row_of(data: str, seed: int, error: float) -> dict:
    return {"data": data, "seed": seed, "error_percent": error, "images": 10_000}


def test_the_papers_number_stands_beside_as_many_networks_as_it_is_of():
    rows = [row_of("cifar10", seed, error) for seed, error in enumerate((14.0, 15.0, 16.0))]
    rows += [
        {"data": "cifar10", "networks": n, "errors_percent": [20.0 - n], "images": 10_000} for n in (2, 7)
    ]
    text = cifar10.report(rows)
    assert "| cifar10, 1 network | 15.00 ± 1.00 (3) |  |  |" in text
    assert "| cifar10, 7 networks together | 13.00 | 10.6 (7 networks together) | +2.40 |" in text
    assert "| smallnorb, 1 network | 3.00 | 2.7 (1 network) | +0.30 |" in smallnorb.report(
        [row_of("smallnorb", 0, 3.0)]
    )


def test_with_fewer_networks_the_papers_number_stands_beside_the_most_and_is_not_subtracted():
    text = cifar10.report([row_of("cifar10", 0, 40.0)])
    assert "| cifar10, 1 network | 40.00 | 10.6 (7 networks together) |  |" in text


def test_cifar10_and_its_copy_stay_apart_in_one_report():
    rows = [row_of("cifar10-jpeg", 0, 50.0), row_of("cifar10", 0, 40.0)]
    text = cifar10.report(rows)
    assert "| cifar10-jpeg, 1 network | 50.00 | 10.6 (cifar10, 7 networks together) |  |" in text
    assert "| cifar10, 1 network | 40.00 |" in text


def test_nothing_measured_leaves_blanks():
    assert "| svhn, 1 network |  | 4.3 |  |" in svhn.report([])


def test_the_original_goes_before_the_copy_where_both_are(tmp_path):
    store_cifar10_jpeg(tmp_path)
    assert on_hand(cifar10.FULL.network, tmp_path).data.name == "cifar10-jpeg"
    store_cifar10(tmp_path)
    assert on_hand(cifar10.FULL.network, tmp_path).data.name == "cifar10"


@pytest.mark.parametrize("name", ["cifar10", "smallnorb", "svhn"])
def test_without_its_data_an_experiment_names_the_download_and_leaves_no_network(name, tmp_path, capsys):
    folders = ["--data", tmp_path / "data", "--out", tmp_path / "out", "--networks", tmp_path / "networks"]
    assert status("experiment", name, "--quick", "--device", "cpu", *folders) == 2
    assert f"capsnet-train download {name} --data {tmp_path / 'data'}" in capsys.readouterr().err
    assert not (tmp_path / "networks").exists()
    assert not (tmp_path / "out").exists()


def test_missing_data_is_told_from_any_other_missing_file(tmp_path):
    runner = lab_in(tmp_path, tmp_path / "data")
    with pytest.raises(MissingDataError):
        svhn.run(runner, tiny(svhn.QUICK, (0,)))


def test_the_papers_networks_are_those_of_the_full_form():
    assert (cifar10.FULL.network.model.primary_types, len(cifar10.FULL.seeds)) == (64, 7)
    assert cifar10.FULL.network.model.none_of_the_above
    assert svhn.FULL.network.model.conv_channels == 64
    assert smallnorb.FULL.network.data.crop_pixels == 32
