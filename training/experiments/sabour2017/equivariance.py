"""How a capsule changes when its digit is shifted, rotated or scaled.

Introductions to capsules promise that the length of a capsule stays and its pose goes along (Sec. 1 and 8 of
Sabour et al. 2017: equivariance); the paper shows no numbers. Here test digits are moved in small steps, and
the capsule of the label is compared with what the baseline CNN has in its last hidden layer. If features go
along with a motion, a linear function of their change tells how far the digit has moved, also for digits that
it was not fitted on.
"""

# N images, A amounts of a motion, F features, J classes

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from training.config import RunConfig, load_preset
from training.data.batches import to_pixels
from training.data.images import Images
from training.data.transforms.affnist_style import transform
from training.evaluate.evaluation import BATCH
from training.experiments import figure, markdown
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, networks_of, rows_of
from training.experiments.sabour2017 import table1
from training.experiments.sabour2017.samples import halved
from training.models.baselines import BaselineCnn
from training.models.build import Network
from training.models.capsnet import CapsNet, lengths

CAPSNET, CNN = "CapsNet", "CNN"
COMPONENTS = 16  # as many as a digit's capsule has
RIDGE = 1e-3  # of the mean variance of a feature


@dataclass(frozen=True)
class Motion:
    """One way of moving a digit.

    Attributes:
        reach: the largest amount, to both sides.
        step: between amounts.
        unit: of amounts, for people.
        map_of: from an amount to the linear map, row by row, and the shift in pixels.
    """

    reach: float
    step: float
    unit: str
    map_of: Callable[[float], tuple[list[float], list[float]]]

    @property
    def amounts(self) -> list[float]:
        """From one end to the other; 0 is in the middle."""
        steps = round(self.reach / self.step)
        return [float(step * self.step) for step in range(-steps, steps + 1)]


def _turned(degrees: float) -> tuple[list[float], list[float]]:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [cos, -sin, sin, cos], [0, 0]


MOTIONS = {
    "shift right": Motion(4, 1, "pixels", lambda pixels: ([1, 0, 0, 1], [pixels, 0])),
    "shift down": Motion(4, 1, "pixels", lambda pixels: ([1, 0, 0, 1], [0, pixels])),
    "turn": Motion(40, 5, "degrees", _turned),
    "scale": Motion(30, 5, "percent", lambda percent: ([1 + percent / 100, 0, 0, 1 + percent / 100], [0, 0])),
}


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: CapsNet and the CNN.
        seeds: of each network.
        images: how many of the test set, from its start; None takes all.
    """

    networks: dict[str, RunConfig]
    seeds: tuple[int, ...]
    images: int | None


FULL = Plan(dict(zip((CAPSNET, CNN), table1.FULL.networks["mnist"], strict=True)), table1.FULL.seeds, 2000)
QUICK = Plan(
    {
        CAPSNET: narrowed(load_preset("mnist"), 12_000, 3),
        CNN: halved(narrowed(load_preset("mnist-cnn"), 12_000, 3)),
    },
    (0,),
    images=1000,
)


def run(runner: Runner, plan: Plan) -> None:
    """Train both networks with each seed, and move digits before them."""
    for seed in plan.seeds:
        for method, config in plan.networks.items():
            seeded = replace(config, seed=seed)
            settings = networks_of(seeded) | {"at_most": plan.images}
            key = {"method": method, "seed": seed}
            runner.measure(key, settings, partial(_measure, runner, seeded, plan.images))


def _measure(runner: Runner, config: RunConfig, at_most: int | None) -> Row:
    """Probabilities and features of moved digits, and how well these tell the motion."""
    shown: Any = runner.evaluation_batches(config, at_most)
    trained, images = runner.trained(config), shown.images
    seen = {name: follow(trained.model, images, motion) for name, motion in MOTIONS.items()}
    labels = images.labels.cpu()
    return {
        "images": len(images),
        "features": seen["turn"].features.shape[-1],
        "motions": {name: _curves(MOTIONS[name], one, labels) for name, one in seen.items()},
        **trained.origin,
    }


@dataclass(frozen=True)
class Followed:
    """What a network makes of digits at each amount of a motion, on the CPU.

    Attributes:
        probabilities: of all classes, [A, N, J].
        features: of the label's capsule, or of the last hidden layer, [A, N, F].
    """

    probabilities: Tensor
    features: Tensor


@torch.no_grad()
def follow(model: Network, images: Images, motion: Motion) -> Followed:
    """Show the images at each amount of a motion."""
    found: list[list[Tensor]] = [[], []]
    for amount in motion.amounts:
        pixels = to_pixels(moved(images.pixels, motion, amount))
        parts = zip(pixels.split(BATCH), images.labels.split(BATCH), strict=True)
        answers = [_answers(model, *part) for part in parts]
        for into, of_all in zip(found, zip(*answers, strict=True), strict=True):
            into.append(torch.cat(of_all).cpu())
    return Followed(*map(torch.stack, found))


def moved(pixels: Tensor, motion: Motion, amount: float) -> Tensor:
    """Images uint8 [N, C, H, W], moved by an amount around their center; zeros come from outside."""
    count, frame = len(pixels), pixels.shape[-1]
    flat, shift = (torch.tensor(numbers, device=pixels.device) for numbers in motion.map_of(amount))
    maps = flat.float().reshape(2, 2).expand(count, -1, -1)
    return transform(pixels, maps, shift.float().expand(count, -1), frame)


def _answers(model: Network, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [N, J] and features [N, F] of a batch."""
    if isinstance(model, BaselineCnn):
        features = model.features(pixels)
        return model.probabilities(model.classes(features)), features
    assert isinstance(model, CapsNet)
    capsules = model(pixels)
    return lengths(capsules), capsules[torch.arange(len(labels)), labels]


def _curves(motion: Motion, found: Followed, labels: Tensor) -> Row:
    """What a row holds of one motion: lists over amounts, and over digits and features."""
    changes = found.features - found.features[len(motion.amounts) // 2]  # [A, N, F]
    amounts = torch.tensor(motion.amounts)
    right = (found.probabilities.argmax(dim=-1) == labels).double()
    of_label = found.probabilities[:, torch.arange(len(labels)), labels]
    return {
        "amounts": motion.amounts,
        "probability": of_label.double().mean(dim=1).tolist(),
        "accuracy_percent": (100 * right.mean(dim=1)).tolist(),
        "degrees": _angles(found.features).tolist(),
        "explained": explained(changes, amounts, labels),
        "explained_by_components": explained(changes, amounts, labels, COMPONENTS),
        "deviations": _deviations(changes, found.features, amounts, labels),
    }


def _angles(features: Tensor) -> Tensor:
    """Mean angle to the unmoved image's features, [A], degrees."""
    cosines = torch.cosine_similarity(features, features[len(features) // 2], dim=-1)
    return cosines.clamp(-1, 1).acos().rad2deg().double().mean(dim=1)


def explained(changes: Tensor, amounts: Tensor, labels: Tensor, components: int | None = None) -> float:
    """How much of a motion a linear function of the features' change tells: R squared on other images.

    For each class a function is fitted on every other image of the class and measured on the rest.

    Args:
        changes: of features, since the image was at rest, [A, N, F].
        amounts: [A]; their mean is 0.
        labels: [N].
        components: fit on so many principal components of the changes; None takes the features.
    """
    left = total = 0.0
    for label in labels.unique():
        of_class = changes[:, labels == label].double()
        fitted, others = (_standing(of_class[:, start::2], amounts) for start in (0, 1))
        center = fitted[0].mean(dim=0)  # a constant term: the amounts have none
        fitted, others = ((x - center, y) for x, y in (fitted, others))
        if components is not None and components < changes.shape[-1]:
            _, _, directions = torch.linalg.svd(fitted[0], full_matrices=False)
            fitted, others = ((x @ directions[:components].T, y) for x, y in (fitted, others))
        errors = others[1] - others[0] @ _ridge(*fitted)
        left += float(errors.square().sum())
        total += float(others[1].square().sum())
    return 1 - left / total


def _standing(changes: Tensor, amounts: Tensor) -> tuple[Tensor, Tensor]:
    """Changes [A, N, F] as rows [A N, F], each with its amount [A N]."""
    return changes.flatten(0, 1), amounts.double().repeat_interleave(changes.shape[1])


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    products = x.T @ x
    ridge = RIDGE * products.diagonal().mean().clamp(min=1e-12)
    return torch.linalg.solve(products + ridge * torch.eye(len(products)).double(), x.T @ y)


def _deviations(changes: Tensor, features: Tensor, amounts: Tensor, labels: Tensor) -> list[list[float]]:
    """For each class and feature: by how much it changes from end to end of the motion.

    It is the slope of a line through the mean changes, times the way, in standard deviations of the feature
    over unmoved images of the class.
    """
    slopes = torch.einsum("anf,a->nf", changes, amounts) / amounts.square().sum()
    way = float(amounts[-1] - amounts[0])
    at_rest, found = features[len(amounts) // 2], []
    for label in labels.unique():
        of_class = labels == label
        deviation = at_rest[of_class].std(dim=0).clamp(min=1e-6)
        found.append((way * slopes[of_class].mean(dim=0) / deviation).tolist())
    return found


def report(rows: list[Row]) -> str:
    """Both networks at the ends of each motion, how well features predict it, and which dimensions do."""
    lines = [_line(name, method, found) for name in MOTIONS for method, found in _methods(rows).items()]
    header = (
        "",
        "probability at rest, at the ends",
        "accuracy, %",
        "features turn by, °",
        "R², 16",
        "R², all",
    )
    images = markdown.counts(row["images"] for row in rows)
    return f"""{markdown.table(header, lines)}
Means over {images} test images{_of_seeds(rows)}. The ends are the largest motions to both sides: 4 pixels,
40 degrees, 30 %. In training, digits were shifted by at most 2 pixels, and neither turned nor scaled.
Features are the capsule of the label, whose length is the probability, and what the CNN has in its last
hidden layer. R² is the share of a motion's variance that a linear function of the features' change
explains: of {COMPONENTS} principal components of the change, or of all features. Each digit has a
function of its own, which is measured on other images than it was fitted on. 1 is perfect.

{_dimensions(rows)}"""


def _methods(rows: list[Row]) -> dict[str, list[Row]]:
    found = {method: rows_of(rows, method=method) for method in (CAPSNET, CNN)}
    return {method: of_method for method, of_method in found.items() if of_method}


def _of_seeds(rows: list[Row]) -> str:
    seeds = len({row["seed"] for row in rows})
    return "" if seeds == 1 else f" and {seeds} seeds"


def _line(name: str, method: str, rows: list[Row]) -> tuple[str, ...]:
    motions = [row["motions"][name] for row in rows]

    def ends(what: str) -> float:
        return mean(mean((motion[what][0], motion[what][-1])) for motion in motions)

    def rest(what: str) -> float:
        return mean(motion[what][len(motion[what]) // 2] for motion in motions)

    return (
        f"{name}, {method}",
        f"{rest('probability'):.2f}, {ends('probability'):.2f}",
        f"{rest('accuracy_percent'):.1f}, {ends('accuracy_percent'):.1f}",
        f"{ends('degrees'):.0f}",
        f"{mean(motion['explained_by_components'] for motion in motions):.2f}",
        f"{mean(motion['explained'] for motion in motions):.2f}",
    )


def _dimensions(rows: list[Row]) -> str:
    """For each digit the dimension that answers each motion most, in the first seed's CapsNet."""
    capsnets = _methods(rows).get(CAPSNET)
    if not capsnets:
        return ""
    motions, seed = capsnets[0]["motions"], capsnets[0]["seed"]
    lines = []
    for digit in range(len(motions["turn"]["deviations"])):
        cells = [_strongest(motions[name]["deviations"][digit]) for name in MOTIONS]
        lines.append((f"digit {digit}", *cells))
    return f"""{markdown.table(("", *MOTIONS), lines)}
The dimension of the digit's capsule that answers each motion most, and by how many of its standard deviations
over unmoved test images of the digit it changes from one end of the motion to the other. Seed {seed}.
"""


def _strongest(deviations: list[float]) -> str:
    dimension, change = markdown.largest(deviations)
    return f"{dimension} ({change:+.1f})"


def plot(rows: list[Row], file: Path) -> None:
    """For each motion the probability of the label above, and the angle of the features below."""
    with figure.saved(file, columns=len(MOTIONS), rows=2) as axes:
        for column, (name, motion) in enumerate(MOTIONS.items()):
            _draw(axes[column], rows, name, "probability")
            _draw(axes[len(MOTIONS) + column], rows, name, "degrees")
            axes[column].set_ylim(0, 1.02)
            axes[len(MOTIONS) + column].set_xlabel(f"{name}, {motion.unit}")
        axes[0].set_ylabel("probability of the label")
        axes[len(MOTIONS)].set_ylabel("features turn by, degrees")
        entries = {
            "the label's capsule": ("o", figure.OURS),
            "the CNN's last hidden layer": ("o", figure.OTHER),
        }
        figure.legend(axes[0], entries, above=True)


def _draw(axis: Any, rows: list[Row], name: str, what: str) -> None:
    for method, of_method in _methods(rows).items():
        color = figure.OURS if method == CAPSNET else figure.OTHER
        for row in of_method:
            motion = row["motions"][name]
            axis.plot(motion["amounts"], motion[what], "o-", color=color, markersize=3)
