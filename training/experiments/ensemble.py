"""Networks of one configuration and several seeds: the error of each and of all together, beside the paper's.

Sec. 7 of Sabour et al. 2017 does so on CIFAR-10: the lengths of class capsules, summed over 7 models, are the
answer of the ensemble.
"""

# M networks, N images, J classes

from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.config import RunConfig
from training.data.load import FACTS
from training.evaluation import BATCH
from training.examples import Examples, load_images, test_examples
from training.experiments import figure, markdown
from training.experiments.lab import Lab, Row, Trained
from training.models.build import Network
from training.models.capsnet import CapsNet, lengths


@dataclass(frozen=True)
class Plan:
    """How much of an experiment is done.

    Attributes:
        network: a CapsNet.
        seeds: of its weights and of the images held out, one network each.
    """

    network: RunConfig
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Published:
    """What the paper reports.

    Attributes:
        data: the data set that it is of.
        error_percent: of test images.
        networks: that answered together.
    """

    data: str
    error_percent: float
    networks: int


def run(lab: Lab, plan: Plan) -> None:
    """Train a network with each seed, measure each, then every choice of them together."""
    data = plan.network.data.name
    for seed in plan.seeds:
        key: Row = {"data": data, "seed": seed}
        lab.measure(key, partial(_measure_one, lab, replace(plan.network, seed=seed)))
    for networks in range(1, len(plan.seeds) + 1):
        key = {"data": data, "networks": networks}
        lab.measure(key, partial(_measure_together, lab, plan, networks))


def _measure_one(lab: Lab, config: RunConfig) -> Row:
    trained: Trained = lab.trained(config)
    found = class_lengths(trained.model, test_examples(config, lab.root))
    lab.out.mkdir(parents=True, exist_ok=True)
    np.save(lab.out / _lengths_file(config), found.numpy())
    labels = _labels(lab, config)
    wrong = found.argmax(dim=1) != labels
    per_class = [100 * wrong[labels == label].float().mean() for label in range(found.shape[1])]
    return {
        "error_percent": 100 * int(wrong.sum()) / len(wrong),
        "class_error_percent": [round(float(error), 3) for error in per_class],
        "images": len(wrong),
        **trained.origin,
    }


def _measure_together(lab: Lab, plan: Plan, networks: int) -> Row:
    """Errors of each choice of so many networks."""
    configs = [replace(plan.network, seed=seed) for seed in plan.seeds]
    found = torch.stack([torch.from_numpy(np.load(lab.out / _lengths_file(config))) for config in configs])
    labels = _labels(lab, plan.network)
    errors = [
        int((found[list(chosen)].sum(dim=0).argmax(dim=1) != labels).sum())  # [N, J]: longest capsule in sum
        for chosen in combinations(range(len(configs)), networks)
    ]
    return {"errors_percent": [100 * wrong / len(labels) for wrong in errors], "images": len(labels)}


@torch.no_grad()
def class_lengths(model: Network, examples: Examples) -> Tensor:
    """Lengths of a CapsNet's class capsules for every image, float32 [N, J], on the CPU."""
    assert isinstance(model, CapsNet)
    device = next(model.parameters()).device
    batches = (batch.to(device) for batch in examples.fixed(BATCH))
    return torch.cat([lengths(model(batch.pixels)).cpu() for batch in batches])


def _lengths_file(config: RunConfig) -> str:
    """Where the lengths of a network lie, for whoever adds them to others."""
    return f"lengths-{config.data.name}-{config.seed}.npy"


def _labels(lab: Lab, config: RunConfig) -> Tensor:
    return load_images(config, "test", lab.root).labels


def report(rows: list[Row], paper: Published) -> str:
    """For each data set, the error by the number of networks; the paper's beside as many, or the most."""
    lines = []
    for data in _data_sets(rows):
        errors = _together(rows, data)
        beside = min(paper.networks, max(errors))
        for networks, ours in errors.items():
            lines.append(
                (
                    f"{data}, {_counted(networks)}",
                    markdown.mean_and_deviation(ours),
                    f"{paper.error_percent} ({_counted(paper.networks)})" if networks == beside else "",
                    markdown.difference(ours, paper.error_percent) if networks == beside else "",
                )
            )
    if not lines:
        lines.append((f"{paper.data}, {_counted(paper.networks)}", "", f"{paper.error_percent}", ""))
    return markdown.table(("", "test error, %", "paper", "difference"), lines) + _said(rows, paper)


def _said(rows: list[Row], paper: Published) -> str:
    """What was measured on what."""
    said = []
    for data in _data_sets(rows):
        images = next(row["images"] for row in rows if row["data"] == data)
        said.append(f"Measured on the {images} test images of {data}.")
        if data != paper.data:
            said.append(f"{data} is not {paper.data}, of which the paper's number is.")
    if any(len(_together(rows, data)) > 1 for data in _data_sets(rows)):
        said.append(
            "Networks answer together by the sums of their class capsules' lengths; mean and deviation are "
            "over every choice of so many."
        )
    return f"\n{' '.join(said)}\n" if said else ""


def draw(rows: list[Row], file: Path, paper: Published) -> None:
    """Error by the number of networks, and by class."""
    with figure.saved(file, columns=2) as (together, by_class):
        colours = dict(zip(_data_sets(rows), (figure.OURS, figure.OTHER), strict=False))
        for data, colour in colours.items():
            _draw_together(together, _together(rows, data), colour)
            _draw_classes(by_class, [row for row in rows if row["data"] == data and "seed" in row], colour)
        together.plot([paper.networks], [paper.error_percent], "_", color=figure.PAPER, markersize=18)
        most = max([paper.networks, *(max(_together(rows, data)) for data in colours)])
        together.set_xticks(range(1, most + 1))
        together.set_xlim(0.5, most + 0.5)
        together.set_ylim(bottom=0)
        together.set_xlabel("networks together")
        together.set_ylabel("test error, %")
        entries = {data: ("o", colour) for data, colour in colours.items()}
        figure.legend(together, entries | {f"paper, {paper.data}": ("_", figure.PAPER)})


def _draw_together(axis: Any, errors: dict[int, list[float]], colour: str) -> None:
    """Every choice of networks, and the mean."""
    for networks, found in errors.items():
        axis.plot([networks] * len(found), found, "o", color=colour, alpha=0.4, markersize=4)
    axis.plot(list(errors), [mean(found) for found in errors.values()], color=colour)


def _draw_classes(axis: Any, rows: list[Row], colour: str) -> None:
    """The error of each class: a dot for every network, a bar for their mean."""
    names = FACTS[rows[0]["data"]].class_names
    errors = [list(found) for found in zip(*(row["class_error_percent"] for row in rows), strict=True)]
    axis.barh(range(len(names)), [mean(found) for found in errors], color=colour, alpha=0.3)
    for place, found in enumerate(errors):
        axis.plot(found, [place] * len(found), "o", color=colour, markersize=3)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("test error of one network, by class, %")


def _data_sets(rows: list[Row]) -> list[str]:
    """Those of which networks have answered together, in the order in which they were measured."""
    return list(dict.fromkeys(row["data"] for row in rows if "networks" in row))


def _together(rows: list[Row], data: str) -> dict[int, list[float]]:
    """From the number of networks to the errors of each choice of so many."""
    return {
        row["networks"]: row["errors_percent"] for row in rows if row["data"] == data and "networks" in row
    }


def _counted(networks: int) -> str:
    return "1 network" if networks == 1 else f"{networks} networks together"
