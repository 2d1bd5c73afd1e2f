"""Section 5.2 of Sabour et al. 2017: digits transformed in ways that were never trained on.

Both networks are trained on MNIST's digits anywhere in a frame of 40x40, until their validation error is the
same. affNIST's digits are rotated, sheared and scaled as well; they and the affnist-style set that is made
here are two sets, and both are measured on (training/evaluate/transformed.py).
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean

from tqdm import tqdm

from training.config import RunConfig, load_preset
from training.data.datasets import DATASETS
from training.data.readers.files import MissingDataError
from training.evaluate.evaluation import Evaluation, evaluate
from training.evaluate.transformed import evaluate_transformed
from training.experiments import figure, markdown
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, Trained, networks_of, rows_of

CAPSNET, CNN = "CapsNet", "CNN"
SHIFTED, AFFNIST, STYLE = "shifted-mnist", "affnist", "affnist-style"
NAMES = {SHIFTED: DATASETS[SHIFTED].title, AFFNIST: DATASETS[AFFNIST].title, STYLE: STYLE}
PAPER = {  # accuracy in percent, Sec. 5.2
    (SHIFTED, CAPSNET): 99.23,
    (SHIFTED, CNN): 99.22,
    (AFFNIST, CAPSNET): 79.0,
    (AFFNIST, CNN): 66.0,
}
PAPERS_LEAD = PAPER[AFFNIST, CAPSNET] - PAPER[AFFNIST, CNN]  # points
PAPERS_LEAD_SHIFTED = PAPER[SHIFTED, CAPSNET] - PAPER[SHIFTED, CNN]
PAPERS_VERSIONS = 32  # of each test digit in affNIST


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: CapsNet, then the CNN, to be stopped at the same validation error.
        seeds: of each network.
        versions: of each test digit in the sets that are made.
        affnist_stride: every affnist_stride-th image of affNIST is measured on.
    """

    networks: dict[str, RunConfig]
    seeds: tuple[int, ...]
    versions: int
    affnist_stride: int


def stopped_at(config: RunConfig, error_percent: float) -> RunConfig:
    """A run without cooldown that ends as soon as its validation error is at most this."""
    optimizer = replace(config.optimizer, stop_at_error_percent=error_percent, cooldown_epochs=0)
    return replace(config, optimizer=optimizer)


QUICK_STOP = 8.0  # percent

FULL = Plan(
    {CAPSNET: load_preset("affnist"), CNN: load_preset("affnist-cnn")},  # which are stopped at the same error
    seeds=(0, 1, 2),
    versions=PAPERS_VERSIONS,
    affnist_stride=1,
)
MEDIUM = Plan(
    {CAPSNET: load_preset("affnist-small"), CNN: load_preset("affnist-small-cnn")},
    seeds=(0, 1, 2),
    versions=4,
    affnist_stride=7,  # every image of a digit has its turn: they come by 32
)
_SCHEDULE = MEDIUM.networks[CAPSNET].optimizer
MEDIUM_FORM = (
    "**Medium form**: networks with half the channels of the full form's, and half the types of primary "
    f"capsules, stopped at the same error, but after {_SCHEDULE.epochs} epochs at the latest; over the last "
    f"{_SCHEDULE.cooldown_epochs} of these the rate falls linearly to 0. Where CapsNet does not reach that "
    "error, the CNN is stopped at the one that it has reached. What is validated, stopped and "
    "measured is an exponential moving average of the weights, with a decay of "
    f"{_SCHEDULE.ema_decay} per step. It is measured on {MEDIUM.versions} versions of each test digit "
    f"instead of {FULL.versions}, and on every {MEDIUM.affnist_stride}th image of affNIST where it is there."
)
QUICK = Plan(
    {
        CAPSNET: stopped_at(narrowed(load_preset("affnist"), 4000, 12), QUICK_STOP),
        CNN: stopped_at(narrowed(load_preset("affnist-cnn"), 4000, 12), QUICK_STOP),
    },
    seeds=(0,),
    versions=1,
    affnist_stride=31,  # 32 are the versions of a digit: every 32nd image might be of few digits
)


def run(runner: Runner, plan: Plan) -> None:
    """Train each network until it is as good as the other, then measure it on transformed digits.

    Where CapsNet does not reach its target, the CNN is stopped at what CapsNet has reached.
    """
    for seed in plan.seeds:
        reached = 0.0
        for method, config in plan.networks.items():
            seeded = _stopped_no_lower(replace(config, seed=seed), reached)
            network = networks_of(seeded) | {"kind": networks_of(config)["kind"]}  # whatever was reached
            for data in (SHIFTED, STYLE):
                settings = network | {"versions": plan.versions}
                row = runner.measure(
                    _key(data, method, seed), settings, partial(_measure, runner, seeded, data, plan)
                )
            reached = row["validation_error_percent"]
            settings = network | {"share": plan.affnist_stride}
            try:
                runner.measure(
                    _key(AFFNIST, method, seed), settings, partial(_measure, runner, seeded, AFFNIST, plan)
                )
            except MissingDataError as missing:
                tqdm.write(f"affNIST is not measured: {missing}")


def _stopped_no_lower(config: RunConfig, error_percent: float) -> RunConfig:
    """A run that is stopped at its target or, if that is lower, at this validation error."""
    target = max(config.optimizer.stop_at_error_percent or 0.0, error_percent)
    return replace(config, optimizer=replace(config.optimizer, stop_at_error_percent=target))


def _key(data: str, method: str, seed: int) -> Row:
    return {"data": data, "method": method, "seed": seed}


def _measure(runner: Runner, config: RunConfig, data: str, plan: Plan) -> Row:
    trained = runner.trained(config)
    found = _evaluate(runner, trained, data, plan)
    return {
        "accuracy_percent": 100 - found.error_percent,
        "images": found.images,
        "validation_error_percent": trained.progress.best_error_percent,
        "asked_error_percent": config.optimizer.stop_at_error_percent,
        "epochs": trained.progress.epochs,
        **trained.origin,
    }


def _evaluate(runner: Runner, trained: Trained, data: str, plan: Plan) -> Evaluation:
    """Measure a network on one of the three test sets."""
    config, model = trained.config, trained.model
    match data:
        case "affnist" | "affnist-style":
            share = plan.affnist_stride
            return evaluate_transformed(model, config, data, runner.root, runner.device, plan.versions, share)
        case _:
            return evaluate(model, runner.evaluation_batches(config), config.loss, plan.versions)


def report(rows: list[Row]) -> str:
    """Accuracies beside the paper's, and where the networks were stopped."""
    lines = []
    for data, name in NAMES.items():
        for method in (CAPSNET, CNN):
            ours, paper = accuracies(rows, data, method), PAPER.get((data, method))
            printed = "" if paper is None else f"{paper:.2f}"
            difference = markdown.difference(ours, paper)
            lines.append((f"{name}, {method}", markdown.mean_and_deviation(ours), printed, difference))
    accuracy = markdown.table(("", "test accuracy, %", "paper", "difference"), lines)
    return f"{accuracy}\n{_leads(rows)}{TEXT}\n{_stops(rows)}"


def accuracies(rows: list[Row], data: str, method: str) -> list[float]:
    """Of every seed, percent."""
    return [row["accuracy_percent"] for row in rows_of(rows, data=data, method=method)]


def _leads(rows: list[Row]) -> str:
    """How much better CapsNet does on either set of transformed digits, and what is missing.

    Beside it stands how much better it does on digits like those trained on, which is a part of that lead.
    """
    leads = {data: _lead(rows, data) for data in NAMES}
    shifted = "not measured" if leads[SHIFTED] is None else f"{leads[SHIFTED]:+.2f}"
    sentences = []
    for data in (AFFNIST, STYLE):
        if leads[data] is not None:
            images = next(row["images"] for row in rows if row["data"] == data)
            paper = (
                f"; in the paper {PAPERS_LEAD:+.2f} and {PAPERS_LEAD_SHIFTED:+.2f}" if data == AFFNIST else ""
            )
            sentences.append(
                f"CapsNet's lead over the CNN is {leads[data]:+.2f} points on {images:,} images of "
                f"{NAMES[data]} and {shifted} on {NAMES[SHIFTED]}{paper}."
            )
    if missed := _seeds_that_missed(rows, CAPSNET):
        seeds = ", ".join(map(str, missed))
        sentences.append(
            f"CapsNet did not reach its target (seed {seeds}); the CNN's is then CapsNet's error."
        )
    if _seeds_that_missed(rows, CNN):
        sentences.append("Not every CNN reached its target, so this is not a fair comparison.")
    if not any(row["data"] == AFFNIST for row in rows):
        sentences.append("affNIST itself has not been measured: its file is missing.")
    return "\n".join(sentences) + "\n"


def _seeds_that_missed(rows: list[Row], method: str) -> list[int]:
    """With which seeds a method's networks have not reached their target."""
    return sorted({row["seed"] for row in rows if row["method"] == method and not _reached(row)})


def _lead(rows: list[Row], data: str) -> float | None:
    """CapsNet's accuracy less the CNN's, points; None where one of them has not been measured."""
    capsnet, cnn = (accuracies(rows, data, method) for method in (CAPSNET, CNN))
    return mean(capsnet) - mean(cnn) if capsnet and cnn else None


TEXT = """
Both networks are trained on MNIST digits anywhere in a 40x40 frame and on no other transformation, until
their error on held-out training digits, shifted likewise, reaches the target; the test digits are not used
for that. Shifted MNIST is the MNIST test digits anywhere in the frame. affNIST is the published test set.
The affnist-style set is not in the paper: MNIST's test digits rotated by up to 20 degrees, sheared by up to
0.2, scaled by 0.8 to 1.2 along each axis and moved within the frame.
"""


def _stops(rows: list[Row]) -> str:
    """Where each network was stopped."""
    networks = {row["network"]: row for row in rows}.values()
    header = ("", "seed", "epochs", "lowest validation error, %", "target, %", "parameters")
    return markdown.table(
        header,
        [
            (
                row["method"],
                str(row["seed"]),
                f"{row['epochs']:g}",
                f"{row['validation_error_percent']:.2f}" + ("" if _reached(row) else " (not reached)"),
                f"{row['asked_error_percent']:.2f}",
                f"{row['parameters']:,}",
            )
            for row in networks
        ],
    )


def _reached(row: Row) -> bool:
    return bool(row["validation_error_percent"] <= row["asked_error_percent"])


def plot(rows: list[Row], file: Path) -> None:
    """Accuracy of every seed of both networks on each set, beside the paper's."""
    colors = {CAPSNET: figure.OURS, CNN: figure.OTHER}
    lines = [(data, method) for data in NAMES for method in colors]
    with figure.saved(file) as [axis]:
        for height, (data, method) in enumerate(reversed(lines)):
            ours = accuracies(rows, data, method)
            axis.plot(ours, [height] * len(ours), "o", color=colors[method])
            if paper := PAPER.get((data, method)):
                axis.plot([paper], [height], "|", color=figure.PAPER, markersize=18)
        axis.set_yticks(range(len(lines)), [f"{NAMES[data]}, {method}" for data, method in reversed(lines)])
        axis.set_ylim(-0.6, len(lines) - 0.4)
        axis.set_xlim(right=101)
        axis.set_xlabel("test accuracy, %")
        entries = {f"{method}, each seed": ("o", color) for method, color in colors.items()}
        figure.legend(axis, entries | {"paper": ("|", figure.PAPER)})
