"""SVHN in Sec. 7 of Sabour et al. 2017: a smaller network on house numbers."""

from dataclasses import replace
from pathlib import Path

from training.config import CapsNetConfig, RunConfig, load_preset
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner
from training.experiments.sabour2017 import ensemble
from training.experiments.sabour2017.ensemble import Plan, Published


def half_the_papers_width(config: RunConfig) -> RunConfig:
    """For the quick form: an eighth, as elsewhere, would leave 8 channels of a network that is small."""
    assert isinstance(config.model, CapsNetConfig)
    return replace(config, model=replace(config.model, conv_channels=32, primary_types=8))


PAPER = Published("svhn", error_percent=4.3)
FULL = Plan(load_preset("svhn"), (0, 1, 2))
QUICK = Plan(half_the_papers_width(narrowed(load_preset("svhn"), 8000, 4)), (0, 1))


def run(runner: Runner, plan: Plan) -> None:
    """Train the networks and measure each."""
    ensemble.run(runner, plan)


def report(rows: list[Row]) -> str:
    """The error, the paper's beside it."""
    return ensemble.report(rows, PAPER)


def plot(rows: list[Row], file: Path) -> None:
    """Error by the number of networks, and by digit."""
    ensemble.plot(rows, file, PAPER)
