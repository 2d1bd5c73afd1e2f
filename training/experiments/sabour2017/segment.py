"""Section 6 of Sabour et al. 2017: pixels of overlapping digits, assigned to one, the other or both.

The two longest capsules are decoded, each alone, and "any pixel with non-zero intensity" belongs to the
digit. A sigmoid is never zero, so that has to be said more exactly: at least a gray level of 1 in 255, or
above a threshold that assigns most of the pixels right on validation pairs.
"""

# B batch, J classes, H and W height and width, T thresholds

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from training.config import RunConfig
from training.data.batches import Batch, Batches
from training.data.run_images import training_batches
from training.evaluate.evaluation import BATCH
from training.experiments import figure, markdown
from training.experiments.runner import Row, Runner, Trained, networks_of
from training.experiments.sabour2017 import multimnist
from training.loss.objective import reconstruct
from training.models.capsnet import CapsNet, lengths

GRAY_LEVEL = 0.5 / 255  # what is above it is not 0 in a picture of 8 bits
EVERYTHING = -1.0  # a threshold that every pixel is above: what no segmentation at all comes to
THRESHOLDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)  # of 1, white
RULES = {
    "chosen": "above the threshold",
    "non-zero": "not zero, of 255",
    "everything": "every pixel to both",
}
SHOWN = 8  # pairs in the figure
# Red and green as in Fig. 5, both where a pixel is in both digits; gray where it is in neither.
FIRST, SECOND, BOTH, NEITHER = (230, 60, 50), (60, 190, 75), (255, 225, 60), (120, 120, 120)


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        network: a CapsNet with a decoder, of pairs.
        seeds: of it.
    """

    network: RunConfig
    seeds: tuple[int, ...]


FULL = Plan(multimnist.FULL.networks[multimnist.CAPSNET], multimnist.FULL.seeds)
QUICK = Plan(multimnist.QUICK.networks[multimnist.CAPSNET], multimnist.QUICK.seeds)


class Apart(NamedTuple):
    """Pairs taken apart.

    Attributes:
        objects: the true digits, each alone, [B, 2, H, W], 0 to 1.
        drawn: what is decoded for each of them, [B, 2, H, W], 0 to 1.
        classes: what each of them is taken for, int64 [B, 2].
        labels: what it is, int64 [B, 2].
    """

    objects: Tensor
    drawn: Tensor
    classes: Tensor
    labels: Tensor

    @property
    def true(self) -> Tensor:
        """Which pixels are not zero in each digit, bool [B, 2, H, W]."""
        return self.objects > 0

    @property
    def ink(self) -> Tensor:
        """Which pixels there are to assign: those not zero in the image, bool [B, H, W]."""
        return self.true.any(dim=1)

    def assigned(self, threshold: float) -> Tensor:
        """Which of these belong to each digit, bool [B, 2, H, W]."""
        return (self.drawn > threshold) & self.ink.unsqueeze(1)


class Sums(NamedTuple):
    """Over pairs: how many, how many named right, IoU of both, and pixels; numbers or tensors [B, ...]."""

    pairs: Any
    named: Any
    iou: Any
    named_iou: Any
    ink: Any
    right: Any
    overlap: Any
    overlap_right: Any


def run(runner: Runner, plan: Plan) -> None:
    """Choose a threshold on the validation pairs, measure on the test pairs."""
    for seed in plan.seeds:
        config = replace(plan.network, seed=seed)
        runner.measure({"seed": seed}, networks_of(config), partial(_measure, runner, config))


def _measure(runner: Runner, config: RunConfig) -> Row:
    trained: Trained = runner.trained(config)
    model, test = trained.model, runner.evaluation_batches(config)
    assert isinstance(model, CapsNet)
    _, validation = training_batches(config, runner.root)
    assert validation is not None  # the threshold is chosen on it
    on_validation = measure(model, validation.to(runner.device), THRESHOLDS)
    chosen = max(THRESHOLDS, key=lambda threshold: on_validation[threshold]["right_percent"] or 0)
    used = {"chosen": chosen, "non-zero": GRAY_LEVEL, "everything": EVERYTHING}
    on_test = measure(model, test, used.values())
    first = take_apart(model, next(test.fixed(BATCH))[:SHOWN])
    return {
        "threshold": chosen,
        "rules": {rule: on_test[threshold] for rule, threshold in used.items()},
        "pairs": len(test),
        "validation_pairs": len(validation),
        "pictures": runner.keep(f"pairs-{config.seed}", pictures(first, chosen)),
        "captions": [
            [_names("L", labels), _names("P", classes)]
            for labels, classes in zip(first.labels.tolist(), first.classes.tolist(), strict=True)
        ],
        **trained.origin,
    }


def measure(
    model: CapsNet, batches: Batches, thresholds: Iterable[float]
) -> dict[float, dict[str, float | None]]:
    """How well pixels are assigned, over all pairs, for each threshold.

    Returns:
        For each threshold, in percent: `iou_percent`, of a digit's true pixels and those assigned to it, mean
        over digits; `named_iou_percent`, the same over digits in pairs that are named right, None without
        any; and how many of the pixels are assigned to exactly the digits that they are in: of those in both,
        `overlap_percent`, of those in one, `single_percent`, of all, `right_percent`.
    """
    device = next(model.parameters()).device
    sums = {each: torch.zeros(len(Sums._fields), dtype=torch.float64, device=device) for each in thresholds}
    for batch in batches.fixed(BATCH):
        apart = take_apart(model, batch.to(device))
        for threshold, so_far in sums.items():
            so_far += _sums(apart, threshold)
    return {threshold: _percentages(Sums(*so_far.tolist())) for threshold, so_far in sums.items()}


@torch.no_grad()
def take_apart(model: CapsNet, batch: Batch) -> Apart:
    """Decode the two longest capsules of each pair, each alone."""
    assert model.decoder
    v = model(batch.pixels)
    classes = lengths(v).topk(2).indices  # [B, 2]
    drawn = reconstruct(model.decoder, v, F.one_hot(classes, v.shape[1]).float())[:, :, 0]  # [B, 2, H, W]
    labels, objects = batch.masks.argmax(dim=2), batch.objects[:, :, 0]
    turned = _likeness(classes.flip(1), drawn.flip(1), labels, objects) > _likeness(
        classes, drawn, labels, objects
    )
    return Apart(
        objects,
        torch.where(turned[:, None, None, None], drawn.flip(1), drawn),
        torch.where(turned[:, None], classes.flip(1), classes),
        labels,
    )


def _likeness(classes: Tensor, drawn: Tensor, labels: Tensor, objects: Tensor) -> Tensor:
    """How well two capsules go with two digits in this order, [B].

    A class that is right counts for more than any picture. The pictures decide only where both are wrong.
    """
    difference = (drawn - objects).square().mean(dim=(1, 2, 3))  # 0 to 1
    return (classes == labels).sum(dim=1) - difference


def _sums(apart: Apart, threshold: float) -> Tensor:
    """The fields of `Sums`, of these pairs."""
    assigned, ink = apart.assigned(threshold), apart.ink
    shared = (assigned & apart.true).sum(dim=(2, 3))
    union = (assigned | apart.true).sum(dim=(2, 3)).clamp(min=1)  # a digit may have no ink
    iou = (shared / union).mean(dim=1)  # [B]
    named = (apart.classes == apart.labels).all(dim=1)
    right = (assigned == apart.true).all(dim=1) & ink  # [B, H, W]
    overlap = apart.true.all(dim=1)
    sums = Sums(torch.ones_like(iou), named, iou, iou * named, ink, right, overlap, right & overlap)
    return torch.stack([each.double().sum() for each in sums])


def _percentages(sums: Sums) -> dict[str, float | None]:
    """As `measure` describes them."""
    parts = {
        "iou_percent": (sums.iou, sums.pairs),
        "named_iou_percent": (sums.named_iou, sums.named),
        "overlap_percent": (sums.overlap_right, sums.overlap),
        "single_percent": (sums.right - sums.overlap_right, sums.ink - sums.overlap),
        "right_percent": (sums.right, sums.ink),
    }
    return {name: 100 * part / whole if whole else None for name, (part, whole) in parts.items()}


def pictures(apart: Apart, threshold: float) -> NDArray[np.uint8]:
    """Input, true digits and what is assigned to them, of each pair: [B, 3, H, W, 3]."""
    gray = (255 * apart.objects.sum(dim=1).clamp(max=1)).round().byte()  # clipped, as the image is
    shown = [gray.unsqueeze(-1).expand(-1, -1, -1, 3), _colored(apart.true, apart.ink)]
    return torch.stack([*shown, _colored(apart.assigned(threshold), apart.ink)], dim=1).cpu().numpy()


def _colored(belongs: Tensor, ink: Tensor) -> Tensor:
    """To which of two digits pixels belong, bool [B, 2, H, W], as colors, uint8 [B, H, W, 3]."""
    palette = torch.tensor([(0, 0, 0), NEITHER, FIRST, SECOND, BOTH], dtype=torch.uint8, device=ink.device)
    index = torch.where(ink, 1 + belongs[:, 0].int() + 2 * belongs[:, 1].int(), 0)
    return palette[index]


def report(rows: list[Row]) -> str:
    """Shares of pixels, for each way to say which pixels of what is decoded are not zero."""
    lines = []
    for rule, name in RULES.items():
        columns = (
            [row["rules"][rule][column] for row in rows if row["rules"][rule][column] is not None]
            for column in COLUMNS
        )
        lines.append((name, *(markdown.mean_and_deviation(values, 1) for values in columns), ""))
    shares = markdown.table(("assigned to a digit", *COLUMNS.values(), "paper"), lines)
    if not rows:
        return shares
    thresholds = ", ".join(f"{row['threshold']:g}" for row in rows)
    pairs, validation = rows[0]["pairs"], rows[0]["validation_pairs"]
    return shares + TEXT.format(pairs=pairs, validation=validation, thresholds=thresholds)


COLUMNS = {
    "iou_percent": "IoU, %",
    "named_iou_percent": "IoU in pairs named right, %",
    "overlap_percent": "right of the pixels in both, %",
    "single_percent": "right of those in one, %",
    "right_percent": "right of all, %",
}

TEXT = """
Measured on all pixels that are not zero in the {pairs:,} pairs of the fixed MultiMNIST test set. A pixel
truly belongs to each digit that is not zero there, to one or to both. IoU is the intersection over the union
of a digit's true pixels and those assigned to it, mean over digits; "right" are pixels assigned to exactly
the digits that they belong to. What is decoded from a wrong class counts for the digit that was missed. The
threshold, {thresholds} of white, is the one that assigns most pixels right on {validation:,} validation
pairs. The paper shows pictures and gives no number.

The figure shows the first test pairs: red and green are pixels of the first and of the second digit, yellow
those of both, gray those assigned to neither. L are the labels, P the two longest capsules.
"""


def plot(rows: list[Row], file: Path) -> None:
    """Input, truth and assignment of the pairs that the first network was shown."""
    shown = np.load(file.parent / rows[0]["pictures"])  # [B, 3, H, W, 3]
    grid: list[list[NDArray[np.uint8] | None]] = [list(line) for line in shown.swapaxes(0, 1)]
    labels, answers = zip(*rows[0]["captions"], strict=True)
    captions = [[""] * len(labels), list(labels), list(answers)]
    figure.save_grid(file, grid, ["input", "true", "assigned"], [""] * len(labels), captions)


def _names(kind: str, classes: list[int]) -> str:
    return f"{kind}:({classes[0]}, {classes[1]})"
