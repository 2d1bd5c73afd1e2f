"""Figures A.1 and A.2 of Sabour et al. 2017: whether routing converges, and what it does for training."""

# B batch, I lower capsules, J upper capsules, D upper pose, R iterations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor, nn

from training.config import CapsNetConfig, RunConfig, load_preset
from training.data.batches import Batches
from training.data.run_images import training_batches
from training.evaluate.evaluation import BATCH
from training.experiments import figure, markdown
from training.experiments.cifar10_copy import JPEG_COPY, on_hand
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, Trained, networks_of, rows_of, run_name
from training.experiments.sabour2017.section7 import EXPERIMENTS as SECTION_7
from training.fit.loop import LOG_EVERY, Limits
from training.fit.session import training_session
from training.models.capsnet import CapsNet
from training.models.capsules import RoutingByAgreement

ITERATIONS = 10
PAPER_CHANGE = {2: 0.007, 5: 1e-5}  # mean change of a logit by iteration, after 500 epochs
COMPARED = (1, 3)  # iterations of which Fig. A.2 shows the training loss
LOSS_POINTS = 200  # of a curve, at most
DIFFERENCE = "difference to the change before"


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        network: a CapsNet that Fig. A.1 looks at while it is trained; its rate has no cooldown, so that a
            stage of its training is the same as a shorter training.
        stages: epochs after which it is looked at, rising; 0 is before the first step.
        images: of the test set that it is shown.
        compared: a CapsNet on CIFAR-10, trained with 1 and with 3 iterations for Fig. A.2.
    """

    network: RunConfig
    stages: tuple[int, ...]
    images: int
    compared: RunConfig


def _steady(config: RunConfig, epochs: int) -> RunConfig:
    """For this many epochs, without a cooldown."""
    return replace(config, optimizer=replace(config.optimizer, epochs=epochs, cooldown_epochs=0))


FULL = Plan(
    _steady(load_preset("mnist"), 500),
    (0, 1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 500),
    10_000,
    SECTION_7["cifar10"].FULL.network,
)
QUICK = Plan(
    _steady(narrowed(load_preset("mnist"), 4000, 6), 6),
    (0, 1, 2, 3, 4, 5, 6),
    1000,
    SECTION_7["cifar10"].QUICK.network,
)


def run(runner: Runner, plan: Plan) -> None:
    """Look at routing in each stage of training, then train with few and with more iterations."""
    for epochs in plan.stages:
        key: Row = {"figure": "A.1", "epoch": epochs}
        settings = networks_of(plan.network) | {"at_most": plan.images}
        runner.measure(key, settings, partial(_measure_changes, runner, plan, epochs))
    for iterations in COMPARED:
        config = with_iterations(on_hand(plan.compared, runner.root), iterations)
        key = {"figure": "A.2", "data": config.data.name, "iterations": iterations}
        runner.measure(key, networks_of(config), partial(_measure_losses, runner, config))


def with_iterations(config: RunConfig, iterations: int) -> RunConfig:
    """A CapsNet with this many iterations of routing."""
    assert isinstance(config.model, CapsNetConfig)
    return replace(config, model=replace(config.model, routing_iterations=iterations))


def _measure_changes(runner: Runner, plan: Plan, epochs: int) -> Row:
    trained = stage(runner, plan.network, epochs)
    assert isinstance(trained.model, CapsNet)
    shown = runner.evaluation_batches(plan.network, plan.images)
    change, settling = logit_changes(trained.model, shown, ITERATIONS).tolist()
    return {
        "images": len(shown),
        "trained_iterations": trained.model.config.routing_iterations,
        "change": change,
        "settling": settling[1:],
        **trained.origin,
    }


def stage(runner: Runner, config: RunConfig, epochs: int) -> Trained:
    """A network after this many epochs of its training, with the weights of that moment.

    The run lies in the experiment's own folder, and the next stage goes on from this one: of a run that is
    over, the stages could not be seen.

    Raises:
        ValueError: the run has been trained for longer than that.
        KeyboardInterrupt: a signal stopped the training; it goes on from there when called again.
    """
    assert config.optimizer.cooldown_epochs == 0, "the rate would depend on where the training ends"
    run = runner.out / "stages" / run_name(config)
    with training_session(run, _steady(config, max(epochs, 1)), runner.device) as trainer:
        if trainer.progress.epochs > epochs:
            raise ValueError(
                f"{run} has been trained for {trainer.progress.epochs:g} epochs, and what it was like after "
                f"{epochs} is not in {runner.out / 'rows.jsonl'}; remove both to begin anew"
            )
        is_finished = not epochs or trainer.fit(*training_batches(config, runner.root), Limits())
        if not is_finished or trainer.interrupted:
            raise KeyboardInterrupt
    return Trained(run, config, trainer.model.eval(), trainer.progress)


@torch.no_grad()
def logit_changes(model: CapsNet, shown: Batches, iterations: int) -> Tensor:
    """How much each iteration of routing changes the logits, and how much that differs from the one before.

    Args:
        model: in evaluation mode; it may have been trained with fewer iterations, or more.
        shown: images.
        iterations: R.

    Returns:
        [2, R], float64: mean over images, lower and upper capsules of |u_hat . v|, which an iteration adds to
        a logit (line 7 of Procedure 1), and of the absolute difference between this and what the iteration
        before has added; the first iteration has none before it, and differs from 0.
    """
    lower = deepcopy(model)  # all up to the class capsules
    lower.class_caps = nn.Identity()  # type: ignore[assignment]  # which it hands on
    device = next(model.parameters()).device
    totals = torch.zeros(2, iterations, dtype=torch.float64, device=device)
    for batch in shown.fixed(BATCH):
        u_hat = model.class_caps.votes(lower(batch.pixels.to(device)))
        before = u_hat.new_zeros(())
        for r, change in enumerate(_changes(model.class_caps.routing, u_hat, iterations)):
            found = torch.stack([change.abs().double().mean(), (change - before).abs().double().mean()])
            totals[:, r] += len(batch) * found
            before = change
    return totals / len(shown)


def _changes(routing: RoutingByAgreement, u_hat: Tensor, iterations: int) -> Iterator[Tensor]:
    """What the first iteration adds to the logits, the second, and so on; each [B, J, I]."""
    shorter = deepcopy(routing)
    for iteration in range(1, iterations + 1):
        shorter.iterations = iteration
        v = shorter(u_hat)
        yield routing.agreement(u_hat, v)


def _measure_losses(runner: Runner, config: RunConfig) -> Row:
    trained = runner.trained(config)
    logged = [json.loads(line) for line in (trained.run / "log.jsonl").read_text().splitlines()]
    rows = [row for row in logged if row["kind"] == "train"]
    at_step, loss = loss_curve([row["step"] for row in rows], [row["loss"] for row in rows])
    return {
        "batch_size": config.optimizer.batch_size,
        "at_step": at_step,
        "loss": loss,
        **trained.origin,
    }


def loss_curve(steps: Sequence[int], losses: Sequence[float]) -> tuple[list[int], list[float]]:
    """The mean loss of parts of a training that are equally long, however often it was logged.

    Args:
        steps: at which losses were logged, ascending.
        losses: each the mean since the one before.

    Returns:
        The last step of each part, and its mean loss.
    """
    every = np.array([0, *steps])
    total = np.array([0.0, *np.cumsum(np.diff(every) * losses)])  # at the end of every row
    parts = min(LOSS_POINTS, -(-steps[-1] // LOG_EVERY))
    ends = np.linspace(0, steps[-1], parts + 1).round().astype(int)
    return ends[1:].tolist(), (np.diff(np.interp(ends, every, total)) / np.diff(ends)).tolist()


def report(rows: list[Row]) -> str:
    """Both figures in numbers, beside what the paper says of them."""
    stages, losses = _stages(rows), _losses(rows)
    return "\n".join(
        ([_report_changes(stages)] if stages else []) + ([_report_losses(losses)] if losses else [])
    )


def _stages(rows: list[Row]) -> list[Row]:
    return rows_of(rows, figure="A.1")


def _losses(rows: list[Row]) -> dict[int, Row]:
    """By iterations of routing, on the data set that was measured on last."""
    found = rows_of(rows, figure="A.2")
    return {row["iterations"]: row for row in found if row["data"] == found[-1]["data"]}


def _report_changes(stages: list[Row]) -> str:
    first, last = stages[0], stages[-1]
    header = (
        "iteration",
        f"change of a logit, {_at(first)}",
        _at(last),
        "paper, epoch 500",
        "difference to the paper",
        f"{DIFFERENCE}, {_at(last)}",
    )
    lines = [_line(iteration, first, last) for iteration in range(1, len(last["change"]) + 1)]
    return f"""Figure A.1, absolute values, mean over {last["images"]:,} test images, the first ones, and
all pairs of capsules:

{markdown.table(header, lines)}
The network was trained with {last["trained_iterations"]} iterations and is shown what more of them would do.
{CHANGE}{_verdict(last)}
{LEAST_CHANGE}"""


def _line(iteration: int, first: Row, last: Row) -> tuple[str, ...]:
    """An iteration of routing, before training and after it, beside the paper's."""
    change, paper = last["change"][iteration - 1], PAPER_CHANGE.get(iteration)
    return (
        str(iteration),
        f"{first['change'][iteration - 1]:.2g}",
        f"{change:.2g}",
        f"{paper:g}" if paper else "",
        f"{change - paper:+.2g}" if paper else "",
        f"{last['settling'][iteration - 2]:.2g}" if iteration > 1 else "",
    )


CHANGE = """The change is what an iteration adds to a logit, by Procedure 1 the product of a vote and the
capsule that it is for. """
LEAST_CHANGE = """It cannot vanish while a capsule has a length: the products of all votes with it, weighted
by their coupling coefficients, sum up to its length before the squash times that after it. One capsule of
length 0.9 among the paper's 1152 x 10 pairs makes the mean at least 3 x 0.9 / 11520 = 0.00023, so that the
paper's 0.00001 must be of something else. What vanishes as routing converges is the last column.
"""


def _at(row: Row) -> str:
    return f"epoch {row['epoch']}" if row["epoch"] else "untrained"


def _verdict(row: Row) -> str:
    """Whether the change falls with the iterations, as the paper's."""
    ratio, paper = row["change"][4] / row["change"][1], PAPER_CHANGE[5] / PAPER_CHANGE[2]
    what = "does not fall" if ratio >= 1 else "falls"
    return f"From iteration 2 to iteration 5 it {what}: the ratio is {ratio:.2g}, the paper's {paper:.2g}."


def _report_losses(losses: dict[int, Row]) -> str:
    lines = [
        (markdown.counted(n, "iteration"), *(f"{_loss_at(row, fraction):.4f}" for fraction in (0.25, 0.5, 1)))
        for n, row in losses.items()
    ]
    row = next(iter(losses.values()))
    data = row["data"]
    return f"""Figure A.2, training loss on {data}, margin and reconstruction, mean over 5 % of the steps:

{markdown.table(("trained with", "after a quarter", "after half", "at the end"), lines)}
{JPEG_COPY if data == "cifar10-jpeg" else ""}
The paper shows curves and has no numbers: its loss falls faster and ends lower with 3 iterations than with 1.
{_end(losses)}Its batch size is 128, ours {row["batch_size"]}.
"""


def _end(losses: dict[int, Row]) -> str:
    """Whether ours ends lower, too."""
    if losses.keys() != set(COMPARED):
        return ""
    few, more = (_loss_at(losses[count], 1) for count in COMPARED)
    return f"Ours ends {abs(more - few):.4f} {'lower' if more < few else 'higher'} with {COMPARED[1]}. "


def _loss_at(row: Row, fraction: float) -> float:
    """Mean over the last points before a fraction of the steps is done; they are a twentieth of all."""
    end = max(round(fraction * len(row["loss"])), 1)
    return mean(row["loss"][max(end - max(len(row["loss"]) // 20, 1), 0) : end])


def plot(rows: list[Row], file: Path) -> None:
    """Change of the logits during training and at its end, linear and log; training loss."""
    with figure.saved(file, columns=2, rows=2) as (training, end, settling, loss):
        stages = _stages(rows)
        _draw_training(training, stages, "change", "change of a logit")
        _draw_training(settling, stages, "settling", DIFFERENCE)
        _draw_end(end, stages[-1])
        _draw_losses(loss, _losses(rows))


def _draw_training(axis: Any, stages: list[Row], name: str, label: str) -> None:
    """A line for each iteration, over the stages of training."""
    epochs = [row["epoch"] for row in stages]
    count = len(stages[0][name])
    colors = mpl.colormaps["viridis"].resampled(ITERATIONS)
    for i, iteration in enumerate(range(ITERATIONS - count + 1, ITERATIONS + 1)):
        values, color = [row[name][i] for row in stages], colors(iteration - 1)
        axis.plot(epochs, values, "o-", color=color, markersize=3, label=str(iteration))
    axis.set_xlabel("epochs of training")
    axis.set_ylabel(label)
    axis.legend(title="iteration", fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_end(axis: Any, last: Row) -> None:
    """Both at the end of training, on a log scale, and the paper's."""
    iterations = range(1, ITERATIONS + 1)
    axis.plot(iterations, last["change"], "o-", color=figure.OURS, label="change of a logit")
    axis.plot(iterations[1:], last["settling"], "s-", color=figure.OTHER, label=DIFFERENCE)
    paper, numbers = list(PAPER_CHANGE), list(PAPER_CHANGE.values())
    axis.plot(paper, numbers, "_", color=figure.PAPER, markersize=18, label="paper, epoch 500")
    axis.set_yscale("log")
    axis.set_xticks(iterations)
    axis.set_xlabel(f"iteration of routing, {_at(last)}")
    axis.legend(loc="center right", bbox_to_anchor=(1, 0.3))  # between ours and the paper's


def _draw_losses(axis: Any, losses: dict[int, Row]) -> None:
    """Training loss over the steps."""
    colors = {1: figure.OTHER, 3: figure.OURS}
    for iterations, row in losses.items():
        label = markdown.counted(iterations, "iteration")
        axis.plot(row["at_step"], row["loss"], color=colors[iterations], label=label)
        axis.set_xlabel(f"steps of {row['batch_size']} images of {row['data']}")
    axis.set_ylabel("training loss")
    if losses:
        axis.legend()
