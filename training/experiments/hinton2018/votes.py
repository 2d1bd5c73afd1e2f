"""Figure 2 of Hinton et al. 2018: how far votes are from the class capsules, in each iteration of routing.

A vote's distance is the Euclidean one, over all elements of the pose, to the capsule's mean after an
iteration. Its weight is the assignment R that this mean was made with, before it is multiplied by the child's
activation: over the classes a child's weights sum to 1.
"""

# B batch, J classes, N votes for each class, T iterations, K bins of all distances, C channels, H and W
# height and width

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from training.config import RunConfig
from training.data.batches import Batches, make_batches
from training.data.datasets import DATASETS
from training.experiments import figure, markdown
from training.experiments.hinton2018 import attack
from training.experiments.hinton2018.adversarial import MATRIX
from training.experiments.hinton2018.stereo import said_of
from training.experiments.runner import Row, Runner, measure_each, networks_of
from training.models.em import Capsules
from training.models.matrix_capsnet import MatrixCapsNet

BATCH = 64  # images: their votes take memory
PAPERS_ZOOM = 0.05  # the figure shows no larger distances; what they are of is not said
SHOWN_RIGHT = ("truck", "human")  # the paper's two examples that are routed right
PAPERS_FAILURE = ("airplane", "car")  # label and answer of its third
BINS, ZOOMED_BINS = 40, 20
DISTANCE = "distance to the capsule's mean"
RIGHT, WRONG = figure.OURS, figure.OTHER
COLORS = ("#1f6fb4", "#d9772b", "#3a9a6b", "#8a4a9e", "#8c6d46")  # of the classes
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: matrix capsules, for each data set.
        images: how many of the test set, from its start; None takes all.
    """

    networks: dict[str, RunConfig]
    images: int | None = None


def _networks(plan: attack.Plan) -> dict[str, RunConfig]:
    return {data: configs[MATRIX] for data, configs in plan.networks.items()}


FULL = Plan(_networks(attack.FULL))
QUICK = Plan(_networks(attack.QUICK), images=500)


class Votes(NamedTuple):
    """What the votes for class capsules are like in each iteration, and what becomes of them.

    Attributes:
        assignments: of each vote, before it is multiplied by the child's activation, [T, B, J, N]; over J
            they sum to 1.
        distances: of each vote to the mean of the class that it is for, [T, B, J, N].
        probabilities: of the classes after each iteration, [T, B, J].
    """

    assignments: Tensor
    distances: Tensor
    probabilities: Tensor


def run(runner: Runner, plan: Plan) -> None:
    """Look at the votes for every test image, on the data that is there."""
    measure_each(runner, plan.networks, partial(_run, runner, plan))


def _run(runner: Runner, plan: Plan, data: str) -> None:
    config = plan.networks[data]
    settings = networks_of(config) | {"at_most": plan.images}
    runner.measure({"data": data}, settings, partial(_measure, runner, plan, config))


@torch.no_grad()
def votes_for_classes(model: MatrixCapsNet, pixels: Tensor) -> Votes:
    """Route images [B, C, H, W] to the classes, and look at each iteration."""
    layer, given = model.class_caps, list[Capsules]()
    with layer.register_forward_pre_hook(lambda _, arguments: given.extend(arguments)):
        model(pixels)
    [children] = given
    votes = layer.votes(children.poses)  # [B, 1, J, N, 16]
    seen = layer.fields.seen(children.activations)
    found = []
    for step in layer.routing.steps(votes, seen, layer.fields, layer.shares):
        distances = (votes - step.mean.unsqueeze(3)).norm(dim=4)  # [B, 1, J, N]
        found.append((step.assignments.expand_as(distances), distances, step.log_activations.exp()))
    return Votes(*(torch.stack(iterations).squeeze(2) for iterations in zip(*found, strict=True)))


def _measure(runner: Runner, plan: Plan, config: RunConfig) -> Row:
    """Histograms over all images, and of the three that the figure shows.

    Returns:
        For each iteration, for the right class and as a mean over the wrong ones: `complete`, the share of
        all votes for a class that is assigned to it, in bins of their distance, [T][2][K], and `probability`,
        [T][2]; and the `examples` of the figure.
    """
    images = runner.evaluation_batches(config, plan.images)
    trained = runner.trained(config)
    model = trained.model
    assert isinstance(model, MatrixCapsNet)
    zoom = _zoom(model, images)
    totals, labels, answers = [], [], []
    for batch in tqdm(images.fixed(BATCH), "votes", -(-len(images) // BATCH), leave=False):
        votes = votes_for_classes(model, batch.pixels)
        totals.append(totals_of(votes, batch.targets.bool(), zoom))
        labels += batch.targets.argmax(dim=1).tolist()
        answers += votes.probabilities[-1].argmax(dim=1).tolist()
    complete, probability = (sum(each) / len(labels) for each in zip(*totals, strict=True))
    shown = chosen(labels, answers, DATASETS[config.data.name].class_names)
    return {
        "images": len(labels),
        "zoom": zoom,
        "complete": complete.tolist(),
        "probability": probability.tolist(),
        "examples": _examples(runner, model, images, shown, zoom),
        **trained.origin,
    }


def _zoom(model: MatrixCapsNet, images: Batches) -> float:
    """Median distance of a vote in the first iteration, by the first images; the figure zooms in to it."""
    batch = next(images.fixed(BATCH))
    return votes_for_classes(model, batch.pixels).distances[0].median().item()


def totals_of(votes: Votes, right: Tensor, zoom: float) -> tuple[Array, Array]:
    """Sums over images of what `_measure` returns the means of.

    Args:
        votes: of some images.
        right: true for each image's own class, [B, J].
        zoom: the distance in the middle of the histograms' log scale.

    Returns:
        Shares of the votes by distance, [T, 2, K], and probabilities, [T, 2].
    """
    count, each = votes.distances.shape[2:]
    complete, probability = [], []
    for assignments, distances, probabilities in zip(*votes, strict=True):
        for to, classes in ((right, 1), (~right, count - 1)):
            complete.append(histogram(distances[to], assignments[to], complete_edges(zoom)) / classes / each)
            probability.append(probabilities[to].sum().item() / classes)
    return np.reshape(complete, (-1, 2, BINS)), np.reshape(probability, (-1, 2))


def complete_edges(zoom: float) -> Array:
    """Of bins on a log scale, [K + 1]: half of them are nearer than the zoom; the outer ones are open."""
    edges: Array = zoom * np.logspace(-1, 1, BINS + 1)
    edges[0], edges[-1] = 0, np.inf
    return edges


def zoomed_edges(zoom: float) -> Array:
    """Of bins of one width, from no distance to the zoom."""
    return np.linspace(0, zoom, ZOOMED_BINS + 1)


def histogram(distances: Tensor, weights: Tensor, edges: Array) -> Array:
    """Sum of the weights in each bin, [K]."""
    found: Array = np.histogram(distances.double().cpu(), edges, weights=weights.double().cpu())[0]
    return found


def chosen(labels: list[int], answers: list[int], names: tuple[str, ...]) -> list[int]:
    """Like the paper's, two images that are routed right and one that is not, if there are such."""
    pairs = [(names[label], names[answer]) for label, answer in zip(labels, answers, strict=True)]
    right = [[i for i, pair in enumerate(pairs) if pair == (name, name)] for name in SHOWN_RIGHT]
    wrong = [i for i, (label, answer) in enumerate(pairs) if label != answer]
    wrong.sort(key=lambda i: pairs[i] != PAPERS_FAILURE)
    return [found[0] for found in (*right, wrong) if found]


def _examples(
    runner: Runner, model: MatrixCapsNet, images: Batches, index: list[int], zoom: float
) -> list[Row]:
    """Of some images the label, and by iteration the answer and the votes for each class, up to the zoom."""
    if not index:
        return []
    names, some = DATASETS[images.config.name].class_names, images.images[torch.tensor(index)]
    [batch] = make_batches(images.config, images.classes, some).fixed(len(index))
    votes, labels = votes_for_classes(model, batch.pixels), batch.targets.argmax(dim=1)
    edges = zoomed_edges(zoom)
    rows = []
    for b, number in enumerate(index):
        weighted = [
            list(zip(d[b], a[b], strict=True))
            for d, a in zip(votes.distances, votes.assignments, strict=True)
        ]
        rows.append(
            {
                "image": number,
                "label": names[int(labels[b])],
                "answers": [names[answer] for answer in votes.probabilities[:, b].argmax(dim=1).tolist()],
                "zoomed": [[histogram(d, a, edges).tolist() for d, a in each] for each in weighted],
                "picture": runner.keep(f"{images.config.name}-{number}", _gray(batch.pixels[b, 0])),
            }
        )
    return rows


def _gray(pixels: Tensor) -> NDArray[np.uint8]:
    return (255 * pixels).round().byte().cpu().numpy()


def report(rows: list[Row]) -> str:
    """For each data set where the votes go in each iteration, and the paper's words for it."""
    return "\n".join(_report(row) for row in rows) + TEXT


def _report(row: Row) -> str:
    lines = []
    for t, (shares, probability) in enumerate(zip(row["complete"], row["probability"], strict=True), 1):
        assigned, near = np.sum(shares, axis=1), np.sum(shares, axis=1, where=np.arange(BINS) < BINS // 2)
        lines.append((str(t), *(f"{100 * number:.1f}" for number in (*assigned, *near, *probability))))
    return f"""On **{row["data"]}**, mean over {row["images"]:,} test images. {said_of(row["data"])}

{markdown.table(HEADER, lines)}
Near is what is nearer than {row["zoom"]:.3g}, as a half of the votes are in the first iteration, by the first
{min(BATCH, row["images"])} images.
"""


HEADER = (
    "iteration",
    "votes assigned to the right class, %",
    "to each wrong one, %",
    "of all: to the right one and near it, %",
    "to each wrong one and near it, %",
    "probability of the right class, %",
    "of each wrong one, %",
)
TEXT = f"""
A distance is the Euclidean one, over the 16 elements of a pose, from a vote to the mean that an iteration
computes; each vote is weighted by its assignment to the class, before it is multiplied by the child's
activation; in the first iteration these are equal for all classes. The paper shows three images of smallNORB
and has no numbers: "at the first iteration, votes are distributed equally", in the second "most of the votes
are assigned to the detected clusters", and "the other capsules only receive scattered votes which are further
than {PAPERS_ZOOM}".
Distances scale with a network's poses, so the figure zooms in on the nearer half of the first iteration's.
Its first row shows the votes of all images at all distances; below are the first images of a truck and of a
human that are routed right, as in the paper, and one that is not.
"""


def plot(rows: list[Row], file: Path) -> None:
    """A column for each iteration: all images at all distances, then single ones, zoomed in."""
    columns = max(len(row["probability"]) for row in rows)
    lines = sum(1 + len(row["examples"]) for row in rows)
    with figure.saved(file, columns=columns, rows=lines, height=2.4) as axes:
        places = iter(axes)
        for row in rows:
            for axis, t in _iterations(places, columns, row):
                _plot_complete(axis, row, t)
            for example in row["examples"]:
                for axis, t in _iterations(places, columns, row):
                    _plot_example(axis, file.parent, row, example, t)


def _iterations(places: Iterator[Any], columns: int, row: Row) -> Iterator[tuple[Any, int]]:
    """The next line of the figure and what is drawn in it; with fewer iterations some stay blank."""
    for t in range(columns):
        axis = next(places)
        if t < len(row["probability"]):
            yield axis, t
        else:
            axis.set_axis_off()


def _plot_complete(axis: Any, row: Row, t: int) -> None:
    """Votes for the right class and for a wrong one, at all distances."""
    edges = complete_edges(row["zoom"])
    edges[0], edges[-1] = edges[1] ** 2 / edges[2], edges[-2] ** 2 / edges[-3]  # as wide as the others
    for shares, color, name in zip(row["complete"][t], (RIGHT, WRONG), ("right", "each wrong"), strict=True):
        axis.stairs(100 * np.array(shares), edges, color=color, label=f"{name} class")
    axis.axvline(row["zoom"], color=figure.PAPER, linewidth=0.8, linestyle=":", label="zoom below")
    axis.set_xscale("log")
    axis.set_ylim(0, 105 * np.max(row["complete"]))
    axis.set_title(f"{row['data']}, iteration {t + 1}")
    axis.set_xlabel(DISTANCE)
    axis.set_ylabel("votes, %")
    axis.legend(fontsize=7)


def _plot_example(axis: Any, folder: Path, row: Row, example: Row, t: int) -> None:
    """Votes for each class by one image, and what it is taken for by now."""
    names = DATASETS[row["data"]].class_names
    for votes, name, color in zip(example["zoomed"][t], names, COLORS, strict=True):
        width = 2.2 if name == example["label"] else 1
        axis.stairs(votes, zoomed_edges(row["zoom"]), color=color, linewidth=width, label=name)
    axis.set_ylim(0, 1.05 * np.max(example["zoomed"]))
    axis.set_title(f"{example['label']}, taken for {example['answers'][t]}")
    axis.set_xlabel(DISTANCE)
    axis.set_ylabel("votes")
    if t == 0:
        picture = axis.inset_axes((0.02, 0.5, 0.3, 0.48))
        picture.imshow(np.load(folder / example["picture"]), cmap="gray")
        picture.set_axis_off()
    if t == len(example["zoomed"]) - 1:
        axis.legend(fontsize=6)
