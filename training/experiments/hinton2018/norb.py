"""Sec. 5 of Hinton et al. 2018: error on toys that were never trained on, by one crop and by several."""

# N images, J classes, W windows

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from training.config import RunConfig, load_preset
from training.data.batches import SingleObjects
from training.evaluate.multi_crop import DISTANCES, window_probabilities
from training.experiments import figure, markdown
from training.experiments.hinton2018 import stereo
from training.experiments.hinton2018.stereo import SMALLNORB, TOYS, without_decoder
from training.experiments.runner import Row, Runner, data_sets, measure_each, rows_of

CAPSULES, SMALL_CAPSULES, CNN = "matrix capsules", "small matrix capsules", "CNN"
ONE, SEVERAL = "one crop", "several crops"
PAPER = {  # error in percent on smallNORB, Sec. 5
    (CAPSULES, ONE): 1.8,
    (CAPSULES, SEVERAL): 1.4,
    (SMALL_CAPSULES, ONE): 2.2,
    (CNN, ONE): 5.2,
}
PAPERS_PARAMETERS = {CAPSULES: "310K", SMALL_CAPSULES: "68K", CNN: "4.2M"}


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: for each data set some of CNN, SMALL_CAPSULES and CAPSULES, the quickest first.
        seeds: of each network.
        test_images: how many of the test set are measured on, from its start; None takes all.
    """

    networks: dict[str, dict[str, RunConfig]]
    seeds: tuple[int, ...]
    test_images: int | None = None


FULL = Plan(
    {
        SMALLNORB: {
            CNN: load_preset("smallnorb-cnn"),
            SMALL_CAPSULES: without_decoder("matrix-smallnorb-small"),
            CAPSULES: without_decoder("matrix-smallnorb"),
        },
        TOYS: {
            CNN: load_preset("toys-cnn"),
            SMALL_CAPSULES: stereo.ON_TOYS,
            CAPSULES: stereo.of_the_papers_size(stereo.ON_TOYS),
        },
    },
    (0, 1, 2),
)
QUICK = Plan(
    {
        data: {SMALL_CAPSULES: stereo.QUICK_CAPSULES[data], CNN: stereo.QUICK_CNN[data]}
        for data in (SMALLNORB, TOYS)
    },
    (0,),
    test_images=1000,
)


def run(runner: Runner, plan: Plan) -> None:
    """Train each network with each seed on each set that is there, and measure both errors."""
    measure_each(runner, plan.networks, partial(_run_on, runner, plan))


def _run_on(runner: Runner, plan: Plan, data: str) -> None:
    stereo.measure_methods(runner, data, plan.networks[data], plan.seeds, plan.test_images, _measure)


def _measure(runner: Runner, config: RunConfig, test_images: int | None) -> Row:
    """Answers by the central crop, and by the mean over all windows."""
    shown = runner.evaluation_batches(config, test_images)
    trained = runner.trained(config)
    assert isinstance(shown, SingleObjects)
    found, labels = window_probabilities(trained.model, shown), shown.images.labels.cpu()  # [W, N, J], [N]
    wrong = {ONE: found[0].argmax(dim=1) != labels, SEVERAL: found.mean(dim=0).argmax(dim=1) != labels}
    return {
        "error_percent": {crops: 100 * int(of.sum()) / len(labels) for crops, of in wrong.items()},
        "images": len(labels),
        **trained.origin,
    }


def report(rows: list[Row]) -> str:
    """For each data set the errors of each network, the paper's beside them."""
    return "\n".join(_report_on(data, rows_of(rows, data=data)) for data in data_sets(rows))


def _report_on(data: str, rows: list[Row]) -> str:
    header = (data, "parameters", "test error, %", f"paper, {stereo.PAPERS}", "difference")
    lines = [
        (
            f"{method}, {crops}",
            _parameters(rows, method),
            markdown.mean_and_deviation(ours := _errors(rows, data, method, crops)),
            markdown.number(paper := PAPER.get((method, crops)), 1),
            markdown.difference(ours, paper) if data == stereo.PAPERS else "",
        )
        for method in PAPERS_PARAMETERS
        for crops in (ONE, SEVERAL)
        if _errors(rows, data, method, crops)
    ]
    return f"{markdown.table(header, lines)}\n{_said(data, rows)}\n"


def _parameters(rows: list[Row], method: str) -> str:
    ours = markdown.counts(row["parameters"] for row in rows_of(rows, method=method))
    return f"{ours} (paper: {PAPERS_PARAMETERS[method]})"


def _said(data: str, rows: list[Row]) -> str:
    """What was measured on what."""
    tested = markdown.counts(row["images"] for row in rows)
    said = [
        f"Measured on {tested} test images of {data}, of toys that were not trained on. One crop is the "
        f"central one; several are {4 * len(DISTANCES) + 1}: it and those {', '.join(map(str, DISTANCES))} "
        "pixels away along the diagonals, as in the official code; their probabilities are averaged, as the "
        "paper has it.",
        stereo.said_of(data),
    ]
    return " ".join(filter(None, said))


def plot(rows: list[Row], file: Path) -> None:
    """Both errors of every seed on each data set, beside the paper's."""
    sets = data_sets(rows)
    with figure.saved(file, columns=len(sets)) as axes:
        for axis, data in zip(axes, sets, strict=True):
            _draw_on(axis, data, rows)
        entries = {"ours, each seed": ("o", figure.OURS), f"paper, {stereo.PAPERS}": ("|", figure.PAPER)}
        figure.legend(axes[0], entries, above=True)


def _draw_on(axis: Any, data: str, rows: list[Row]) -> None:
    methods = [method for method in PAPERS_PARAMETERS if _errors(rows, data, method, ONE)]
    errors = {
        f"{method}, {crops}": (_errors(rows, data, method, crops), PAPER.get((method, crops)))
        for method in methods
        for crops in (ONE, SEVERAL)
    }
    figure.draw_errors(axis, data, errors)
    axis.set_ylim(-0.6, len(errors) - 0.4)


def _errors(rows: list[Row], data: str, method: str, crops: str) -> list[float]:
    return [row["error_percent"][crops] for row in rows_of(rows, data=data, method=method)]
