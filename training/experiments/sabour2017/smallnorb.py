"""SmallNORB in Sec. 7 of Sabour et al. 2017: the network for MNIST, on toys that were never trained on."""

from pathlib import Path

from training.config import load_preset
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner
from training.experiments.sabour2017 import ensemble
from training.experiments.sabour2017.ensemble import Plan, Published

PAPER = Published("smallnorb", error_percent=2.7)
FULL = Plan(load_preset("smallnorb"), (0, 1, 2))
QUICK = Plan(narrowed(load_preset("smallnorb"), 8000, 3), (0, 1))


def run(runner: Runner, plan: Plan) -> None:
    """Train the networks and measure each."""
    ensemble.run(runner, plan)


def report(rows: list[Row]) -> str:
    """The error, the paper's beside it."""
    return ensemble.report(rows, PAPER)


def plot(rows: list[Row], file: Path) -> None:
    """Error by the number of networks, and by category."""
    ensemble.plot(rows, file, PAPER)
