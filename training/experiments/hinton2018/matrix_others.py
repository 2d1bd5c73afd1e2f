"""Sec. 5 of Hinton et al. 2018: matrix capsules on MNIST and CIFAR-10.

Where the data root holds CIFAR-10's JPEG copy alone, that is what is trained and measured on, under its name.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from training.config import RunConfig, load_preset
from training.experiments import figure, markdown
from training.experiments.cifar10_copy import JPEG_COPY, on_hand
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, data_sets, measure_each, networks_of, rows_of

PAPER = {"mnist": 0.44, "cifar10": 11.9}  # error in percent


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: for MNIST and for CIFAR-10.
        seeds: of each.
        test_images: how many of the test set are measured on, from its start; None takes all.
    """

    networks: dict[str, RunConfig]
    seeds: tuple[int, ...]
    test_images: int | None = None


FULL = Plan({"mnist": load_preset("matrix-mnist"), "cifar10": load_preset("matrix-cifar10")}, (0, 1, 2))
QUICK = Plan(
    {
        "mnist": narrowed(load_preset("matrix-mnist"), 3000, 3),
        "cifar10": narrowed(load_preset("matrix-cifar10"), 3000, 3),
    },
    (0,),
    test_images=2000,
)


def run(runner: Runner, plan: Plan) -> None:
    """Train a network with each seed on each set that is there, and measure it."""
    measure_each(runner, plan.networks, partial(_run_on, runner, plan), all_wanted=True)


def _run_on(runner: Runner, plan: Plan, data: str) -> None:
    config = plan.networks[data]
    if data == "cifar10":
        config = on_hand(config, runner.root)
    for seed in plan.seeds:
        seeded = replace(config, seed=seed)
        key: Row = {"data": config.data.name, "seed": seed}
        settings = networks_of(seeded) | {"at_most": plan.test_images}
        runner.measure(key, settings, partial(runner.measured_on_test, seeded, max_images=plan.test_images))


def report(rows: list[Row]) -> str:
    """The errors, the paper's beside them."""
    header = ("", "parameters", "test error, %", "paper", "difference")
    text = f"{markdown.table(header, [_line(rows, data) for data in data_sets(rows)])}\n{_said(rows)}\n"
    return f"{text}\n{JPEG_COPY}\n" if _errors(rows, "cifar10-jpeg") else text


def _line(rows: list[Row], data: str) -> tuple[str, ...]:
    """A data set's; the paper's number for CIFAR-10 stands beside its copy, too, under its own name."""
    paper = PAPER.get(data)
    beside = f"{paper:.2f}" if paper else f"{PAPER['cifar10']:.2f} (cifar10)"
    return (
        data,
        markdown.counts(row["parameters"] for row in rows_of(rows, data=data)),
        markdown.mean_and_deviation(_errors(rows, data)),
        beside,
        markdown.difference(_errors(rows, data), paper),
    )


def _said(rows: list[Row]) -> str:
    """What was measured on what."""
    sizes = {row["data"]: (row["at_most"], row["images"]) for row in rows}
    which = {
        data: f"the first {count:,}" if limit else f"{count:,}" for data, (limit, count) in sizes.items()
    }
    return " ".join(f"{data} is {count} test images." for data, count in which.items())


def plot(rows: list[Row], file: Path) -> None:
    """Errors of every seed beside the paper's."""
    sets = data_sets(rows)
    with figure.saved(file, columns=len(sets), height=1.6) as axes:
        for axis, data in zip(axes, sets, strict=True):
            figure.draw_errors(axis, data, {"": (_errors(rows, data), PAPER.get(data, PAPER["cifar10"]))})
            axis.set_yticks([])  # there is one line alone
        entries = {"ours, each seed": ("o", figure.OURS), "paper": ("|", figure.PAPER)}
        figure.legend(axes[0], entries, above=True)


def _errors(rows: list[Row], data: str) -> list[float]:
    return [row["error_percent"] for row in rows_of(rows, data=data)]
