"""Table 1 of Sabour et al. 2017: error with 1 and 3 routing iterations, with reconstruction and without."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from training.config import CapsNetConfig, RunConfig, load_preset
from training.data.transforms.multimnist import PAPERS_PARTNERS
from training.evaluate.evaluation import wrong_images
from training.experiments import figure, markdown
from training.experiments.medium import for_epochs, medium_form
from training.experiments.paired import compare
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, networks_of, rows_of

CNN = "baseline CNN"
PAPER = {  # error in percent, Table 1; on MNIST the mean of 3 trials
    ("mnist", CNN): 0.39,
    ("mnist", "1 iteration"): 0.34,
    ("mnist", "1 iteration, reconstruction"): 0.29,
    ("mnist", "3 iterations"): 0.35,
    ("mnist", "3 iterations, reconstruction"): 0.25,
    ("multimnist", CNN): 8.1,
    ("multimnist", "1 iteration, reconstruction"): 7.5,
    ("multimnist", "3 iterations, reconstruction"): 5.2,
}
PAPERS_DEVIATION = {  # of these, where the table gives one
    ("mnist", "1 iteration"): 0.032,
    ("mnist", "1 iteration, reconstruction"): 0.011,
    ("mnist", "3 iterations"): 0.036,
    ("mnist", "3 iterations, reconstruction"): 0.005,
}
# What helps: a row of the table, and the one that it is compared with.
COMPARED = {
    "capsules, not a CNN": (CNN, "3 iterations, reconstruction"),
    "routing, with reconstruction": ("1 iteration, reconstruction", "3 iterations, reconstruction"),
    "routing, without": ("1 iteration", "3 iterations"),
    "reconstruction, with routing": ("3 iterations", "3 iterations, reconstruction"),
    "reconstruction, without": ("1 iteration", "1 iteration, reconstruction"),
}
PAIRED = (
    "\nErrors are summed over seeds. p is the probability of such a difference if each test image were as "
    "hard for both, by a permutation test over all ways to exchange the two, with all seeds of an image "
    "together. It says what other images would give, not what other seeds would. Networks that were "
    "not trained for as many steps are not compared."
)


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: CapsNet with 3 iterations and decoder, and the baseline, of each data set.
        seeds: of each network.
    """

    networks: dict[str, tuple[RunConfig, RunConfig]]
    seeds: tuple[int, ...]


MEDIUM_EPOCHS = 10
MEDIUM_FORM = medium_form("the paper's networks", MEDIUM_EPOCHS)
FULL = Plan(
    {name: (load_preset(name), load_preset(f"{name}-cnn")) for name in ("mnist", "multimnist")}, (0, 1, 2)
)
MEDIUM = Plan(
    {
        data: (for_epochs(capsnet, MEDIUM_EPOCHS), for_epochs(cnn, MEDIUM_EPOCHS))
        for data, (capsnet, cnn) in FULL.networks.items()
    },
    FULL.seeds,
)
QUICK = Plan(
    {
        "mnist": (narrowed(load_preset("mnist"), 4000, 2), narrowed(load_preset("mnist-cnn"), 2000, 2)),
        "multimnist": (
            narrowed(load_preset("multimnist"), 4000, 2),
            narrowed(load_preset("multimnist-cnn"), 4000, 2),
        ),
    },
    (0, 1),
)


def run(runner: Runner, plan: Plan) -> None:
    """Train each network with each seed and measure it on the test images."""
    for seed in plan.seeds:
        for data, (capsnet, cnn) in plan.networks.items():
            for method, config in _methods(capsnet, cnn).items():
                if (data, method) in PAPER:
                    key, seeded = {"data": data, "method": method, "seed": seed}, replace(config, seed=seed)
                    runner.measure(key, networks_of(seeded), partial(_measured, runner, seeded))


def _measured(runner: Runner, config: RunConfig) -> Row:
    """Errors on the test images, and which these are."""
    found = runner.measured_on_test(config)
    return found | {"wrong": wrong_images(runner.trained(config).model, runner.evaluation_batches(config))}


def _methods(capsnet: RunConfig, cnn: RunConfig) -> dict[str, RunConfig]:
    """The rows of the table; the CNN, which takes longest, comes last."""
    assert isinstance(capsnet.model, CapsNetConfig)
    methods = {}
    for iterations in (1, 3):
        model = replace(capsnet.model, routing_iterations=iterations)
        name = f"{iterations} iteration{'s' if iterations > 1 else ''}"
        methods[name] = replace(capsnet, model=replace(model, decoder_hidden=()))
        methods[f"{name}, reconstruction"] = replace(capsnet, model=model)
    return methods | {CNN: cnn}


def report(rows: list[Row]) -> str:
    """The table, the paper's error beside ours."""
    lines = []
    for (data, method), paper in PAPER.items():
        ours = _errors(rows, data, method)
        lines.append(
            (
                f"{data}, {method}",
                markdown.mean_and_deviation(ours),
                _of_paper(data, method),
                markdown.difference(ours, paper),
            )
        )
    errors = markdown.table(("", "test error, %", "paper", "difference"), lines)
    return errors + _measured_on(rows) + _comparisons(rows)


def _comparisons(rows: list[Row]) -> str:
    """What routing and reconstruction change, by a paired test."""
    lines = []
    for data in dict.fromkeys(data for data, _ in PAPER):
        for what, methods in COMPARED.items():
            before, after = (_wrong_images(rows, data, method) for method in methods)
            seeds = sorted(before.keys() & after.keys())
            if not seeds or len({*map(partial(_steps, rows, data), methods)}) > 1:
                continue
            found = compare([before[seed] for seed in seeds], [after[seed] for seed in seeds])
            errors, fewer = f"{found.before:,} to {found.after:,}", _percent(found.fewer_percent)
            lines.append((f"{data}, {what}", errors, fewer, f"{found.p:.2g}", f"{len(seeds)}"))
    if not lines:
        return ""
    return f"\n{markdown.table(('what helps', 'errors', 'fewer', 'p', 'seeds'), lines)}{PAIRED}\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{round(value)} %"


def _wrong_images(rows: list[Row], data: str, method: str) -> dict[int, list[int]]:
    """Of every seed."""
    return {row["seed"]: row["wrong"] for row in rows_of(rows, data=data, method=method)}


def _steps(rows: list[Row], data: str, method: str) -> frozenset[int]:
    """Of training; the quick form's CNN for MNIST sees half as many images, and so takes half as many."""
    return frozenset(row.get("steps", 0) for row in rows_of(rows, data=data, method=method))


def _of_paper(data: str, method: str) -> str:
    mean, deviation = f"{PAPER[data, method]:.2f}", PAPERS_DEVIATION.get((data, method))
    return f"{mean} ± {deviation}" if deviation else mean


def _measured_on(rows: list[Row]) -> str:
    """Of which test images the errors are; the paper's pairs are not ours."""
    sizes = {row["data"]: row["images"] for row in rows}
    said = []
    if "mnist" in sizes:
        said.append(f"\nmnist is the {sizes['mnist']:,} test images of MNIST.")
    if "multimnist" in sizes:
        said.append(
            f"\nmultimnist is {sizes['multimnist']:,} pairs, the fixed test set of one partner for each test "
            f"digit. The paper's has {PAPERS_PARTNERS:,} partners for each, 10 million pairs; the full form "
            "of the experiment multimnist measures on as many, made the same way. A pair counts as wrong "
            "unless both digits are named."
        )
    return "\n".join([*said, ""])


def plot(rows: list[Row], file: Path) -> None:
    """Errors of every seed beside the paper's."""
    with figure.saved(file, columns=2) as axes:
        for axis, data in zip(axes, ("mnist", "multimnist"), strict=True):
            errors = {
                method: (_errors(rows, name, method), paper)
                for (name, method), paper in PAPER.items()
                if name == data
            }
            figure.draw_errors(axis, data, errors)
        figure.legend(axes[0], {"ours, each seed": ("o", figure.OURS), "paper": ("|", figure.PAPER)})


def _errors(rows: list[Row], data: str, method: str) -> list[float]:
    return [row["error_percent"] for row in rows_of(rows, data=data, method=method)]
