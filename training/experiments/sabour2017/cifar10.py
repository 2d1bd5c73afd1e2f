"""CIFAR-10 in Sec. 7 of Sabour et al. 2017: 7 networks together, by the summed lengths of their capsules.

Where the data root holds CIFAR-10's JPEG copy alone, that is what is trained and measured on, under its name.
"""

from dataclasses import replace
from pathlib import Path

from training.config import RunConfig, load_preset
from training.data.readers.cifar10_jpeg import name_on_hand
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner
from training.experiments.sabour2017 import ensemble
from training.experiments.sabour2017.ensemble import Plan, Published

JPEG_COPY = "cifar10-jpeg is a copy of CIFAR-10 whose pictures went through JPEG, which loses detail."
PAPER = Published("cifar10", error_percent=10.6, networks=7)
FULL = Plan(load_preset("cifar10"), tuple(range(7)))
QUICK = Plan(narrowed(load_preset("cifar10"), 8000, 4), (0, 1, 2))


def run(runner: Runner, plan: Plan) -> None:
    """Train the networks, measure each and all together."""
    ensemble.run(runner, replace(plan, network=on_hand(plan.network, runner.root)))


def on_hand(config: RunConfig, root: Path) -> RunConfig:
    """The configuration with CIFAR-10, or with its JPEG copy if a data root holds that alone."""
    return replace(config, data=replace(config.data, name=name_on_hand(root)))


def report(rows: list[Row]) -> str:
    """The error by the number of networks."""
    text = ensemble.report(rows, PAPER)
    if any(row["data"] == "cifar10-jpeg" for row in rows):
        text += f"\n{JPEG_COPY}\n"
    return text


def plot(rows: list[Row], file: Path) -> None:
    """Error by the number of networks, and by class."""
    ensemble.plot(rows, file, PAPER)
