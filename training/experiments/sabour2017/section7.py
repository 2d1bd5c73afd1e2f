"""Section 7 of Sabour et al. 2017: CIFAR-10, smallNORB and SVHN, each with networks of several seeds.

Each network is measured alone, and every choice of several together: the lengths of class capsules, summed
over the networks, are the ensemble's answer. (The paper does not say how its networks vote.) One entry below
is one experiment.
"""

# M networks, N images, J classes

from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from torch import Tensor

from training.config import CapsNetConfig, RunConfig, load_preset
from training.data.datasets import DATASETS
from training.data.run_images import load_images
from training.evaluate.evaluation import BATCH, class_probabilities
from training.experiments import figure, markdown
from training.experiments.cifar10_copy import JPEG_COPY, on_hand
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, Trained, data_sets, networks_of, rows_of, run_name


@dataclass(frozen=True)
class Plan:
    """How much of an experiment is done.

    Attributes:
        network: a CapsNet.
        seeds: one network is trained with each, on what is left of the images that each holds out.
    """

    network: RunConfig
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Published:
    """What the paper reports.

    Attributes:
        data: the data set.
        error_percent: of its test images.
        networks: how many answered together.
    """

    data: str
    error_percent: float
    networks: int = 1


@dataclass(frozen=True)
class Experiment:
    """An experiment of this section; its attributes and methods are what a module of an experiment has."""

    PAPER: Published
    FULL: Plan
    QUICK: Plan

    def run(self, runner: Runner, plan: Plan) -> None:
        """Train a network with each seed, measure it, then measure every choice of them together."""
        _run(runner, replace(plan, network=on_hand(plan.network, runner.root)))

    def report(self, rows: list[Row]) -> str:
        """For each data set, the error by the number of networks, and what was measured on what."""
        text = _report(rows, self.PAPER)
        return f"{text}\n{JPEG_COPY}\n" if "cifar10-jpeg" in data_sets(rows) else text

    def plot(self, rows: list[Row], file: Path) -> None:
        """Error by the number of networks, and by class."""
        _plot(rows, file, self.PAPER)


def half_the_papers_width(config: RunConfig) -> RunConfig:
    """For the quick form: an eighth, as elsewhere, would leave 8 channels of a network that is small."""
    assert isinstance(config.model, CapsNetConfig)
    return replace(config, model=replace(config.model, conv_channels=32, primary_types=8))


EXPERIMENTS = {
    "cifar10": Experiment(
        Published("cifar10", error_percent=10.6, networks=7),
        FULL=Plan(load_preset("cifar10"), tuple(range(7))),
        QUICK=Plan(narrowed(load_preset("cifar10"), 8000, 4), (0, 1, 2)),
    ),
    "smallnorb": Experiment(
        Published("smallnorb", error_percent=2.7),
        FULL=Plan(load_preset("smallnorb"), (0, 1, 2)),
        QUICK=Plan(narrowed(load_preset("smallnorb"), 8000, 3), (0, 1)),
    ),
    "svhn": Experiment(
        Published("svhn", error_percent=4.3),
        FULL=Plan(load_preset("svhn"), (0, 1, 2)),
        QUICK=Plan(half_the_papers_width(narrowed(load_preset("svhn"), 8000, 4)), (0, 1)),
    ),
}


def _run(runner: Runner, plan: Plan) -> None:
    data = plan.network.data.name
    members = [replace(plan.network, seed=seed) for seed in plan.seeds]
    for config in members:
        key: Row = {"data": data, "seed": config.seed}
        runner.measure(key, networks_of(config), partial(_measure_one, runner, config))
    for networks in range(2, len(members) + 1):
        key = {"data": data, "networks": networks}
        runner.measure(key, networks_of(*members), partial(_measure_together, runner, members, networks))


def _measure_one(runner: Runner, config: RunConfig) -> Row:
    """The error, and that of each class; the lengths go to a file of the runner."""
    trained: Trained = runner.trained(config)
    shown = runner.evaluation_batches(config).fixed(BATCH)
    found = class_probabilities(trained.model, (batch.pixels for batch in shown))  # lengths of capsules
    labels = _labels(runner, config)
    runner.out.mkdir(parents=True, exist_ok=True)
    np.save(_lengths_file(runner, config), found.numpy())
    wrong = found.argmax(dim=1) != labels
    of_class = [wrong[labels == label] for label in range(found.shape[1])]
    return {
        "error_percent": 100 * int(wrong.sum()) / len(wrong),
        "class_error_percent": [100 * int(of.sum()) / max(len(of), 1) for of in of_class],
        "images": len(wrong),
        **trained.origin,
    }


def _measure_together(runner: Runner, members: list[RunConfig], networks: int) -> Row:
    """The error of each choice of `networks` members."""
    files = [_lengths_file(runner, config) for config in members]
    found, labels = np.stack([np.load(file) for file in files]), _labels(runner, members[0]).numpy()
    choices = [list(choice) for choice in combinations(range(len(files)), networks)]
    answers = [
        found[choice].sum(axis=0).argmax(axis=1) for choice in choices
    ]  # of [M, N, J], the longest sum
    wrong = [int((answer != labels).sum()) for answer in answers]
    return {"errors_percent": [100 * count / len(labels) for count in wrong], "images": len(labels)}


def _lengths_file(runner: Runner, config: RunConfig) -> Path:
    return runner.out / f"lengths-{run_name(config)}.npy"


def _labels(runner: Runner, config: RunConfig) -> Tensor:
    return load_images(config, "test", runner.root).labels


def _report(rows: list[Row], paper: Published) -> str:
    lines = [line for data in data_sets(rows) for line in _lines(data, _errors(rows, data), paper)]
    if not lines:
        lines = [(f"{paper.data}, {_counted(paper.networks)}", "", str(paper.error_percent), "")]
    return f"{markdown.table(('', 'test error, %', 'paper', 'difference'), lines)}\n{_said(rows, paper)}\n"


def _lines(data: str, errors: dict[int, list[float]], paper: Published) -> list[tuple[str, ...]]:
    """The paper's number stands beside as many networks as it is of, or beside the most that there are.

    It is subtracted only from what was measured with as many, on the same data.
    """
    beside = min(paper.networks, max(errors))
    of = _counted(paper.networks)
    published = f"{paper.error_percent} ({of if data == paper.data else f'{paper.data}, {of}'})"
    is_same = (data, beside) == (paper.data, paper.networks)
    return [
        (
            f"{data}, {_counted(networks)}",
            markdown.mean_and_deviation(ours),
            published if networks == beside else "",
            markdown.difference(ours, paper.error_percent) if networks == beside and is_same else "",
        )
        for networks, ours in errors.items()
    ]


def _said(rows: list[Row], paper: Published) -> str:
    """What was measured on what."""
    said = []
    for data in data_sets(rows):
        images = next(row["images"] for row in rows if row["data"] == data)
        said.append(f"Measured on the {images:,} test images of {data}.")
        if data != paper.data:
            said.append(f"This is not {paper.data}, on which the paper's number was measured.")
    said.append(
        "Networks differ in their seed and in the training images that it holds out. Together they answer "
        "by the sums of their class capsules' lengths; the error is the mean over every choice of so many, "
        "± its deviation (number of choices)."
    )
    return " ".join(said)


def _plot(rows: list[Row], file: Path, paper: Published) -> None:
    colors = dict(zip(data_sets(rows), (figure.OURS, figure.OTHER), strict=False))
    with figure.saved(file, columns=2) as (together, by_class):
        for data, color in colors.items():
            _plot_together(together, _errors(rows, data), color)
            _plot_classes(by_class, [row for row in rows_of(rows, data=data) if "seed" in row], color)
        together.plot(
            [paper.networks], [paper.error_percent], "_", color=figure.PAPER, markersize=18, markeredgewidth=2
        )
        max_networks = max([paper.networks, *(max(_errors(rows, data)) for data in colors)])
        together.set(xlim=(0.5, max_networks + 0.5), xlabel="networks together", ylabel="test error, %")
        together.set_xticks(range(1, max_networks + 1))
        together.set_ylim(bottom=0)
        entries = {data: ("o", color) for data, color in colors.items()}
        figure.legend(together, entries | {f"paper, {paper.data}": ("_", figure.PAPER)})


def _plot_together(axis: Any, errors: dict[int, list[float]], color: str) -> None:
    """A dot for every choice of networks, a line through the means."""
    for networks, found in errors.items():
        axis.plot([networks] * len(found), found, "o", color=color, alpha=0.4, markersize=4)
    axis.plot(list(errors), [mean(found) for found in errors.values()], color=color)


def _plot_classes(axis: Any, rows: list[Row], color: str) -> None:
    """A dot for every network, a bar for the mean of a class."""
    names = DATASETS[rows[0]["data"]].class_names
    errors = list(zip(*(row["class_error_percent"] for row in rows), strict=True))
    axis.barh(range(len(names)), [mean(found) for found in errors], color=color, alpha=0.3)
    for place, found in enumerate(errors):
        axis.plot(found, [place] * len(found), "o", color=color, markersize=3)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("test error of one network, by class, %")


def _errors(rows: list[Row], data: str) -> dict[int, list[float]]:
    """Errors of each choice of networks, by their number."""
    of_data = rows_of(rows, data=data)
    errors = {1: [row["error_percent"] for row in of_data if "seed" in row]}
    return errors | {row["networks"]: row["errors_percent"] for row in of_data if "networks" in row}


def _counted(networks: int) -> str:
    return "1 network" if networks == 1 else f"{networks} networks together"
