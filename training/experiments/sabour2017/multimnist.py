"""Section 6 and figure 5 of Sabour et al. 2017: two overlapping digits, named and drawn apart."""

# B batch, J classes, D class pose, H and W height and width

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from training.config import RunConfig, load_preset
from training.data.batches import Batches
from training.data.transforms.multimnist import PAPERS_PARTNERS
from training.evaluate.evaluation import BATCH
from training.experiments import figure, markdown
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, networks_of
from training.experiments.sabour2017 import table1
from training.loss.objective import reconstruct
from training.models.capsnet import CapsNet, lengths

CAPSNET, CNN = "CapsNet, 3 iterations, reconstruction", "baseline CNN"
PAPER = {  # misclassified pairs, percent, Table 1
    CAPSNET: table1.PAPER["multimnist", "3 iterations, reconstruction"],
    CNN: table1.PAPER["multimnist", table1.CNN],
}
PAPERS_TEXT = 5.0  # percent of pairs for CapsNet, as Sec. 6.2 says

# Figure 5: two blocks of these columns.
COLUMNS = ("right", "right", "right", "right", "starred", "starred", "label", "prediction")
TITLES = {
    "right": "classified right",
    "starred": "* neither label\nnor prediction",
    "label": "misclassified,\nby label",
    "prediction": "misclassified,\nby prediction",
}
HEADS = {"right": "R:", "starred": "*R:", "label": "R:", "prediction": "R:P:"}  # as in the paper
BLOCKS = 2


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: CapsNet and the baseline.
        seeds: of each network.
        partners: sizes of the test set that each network is measured on, in partners of each test digit.
    """

    networks: dict[str, RunConfig]
    seeds: tuple[int, ...]
    partners: tuple[int, ...]


FULL = Plan(
    dict(zip((CAPSNET, CNN), table1.FULL.networks["multimnist"], strict=True)),
    table1.FULL.seeds,
    partners=(1, PAPERS_PARTNERS),
)
QUICK = Plan(  # trained for longer than table 1's, which do not draw more than blots yet
    {
        CAPSNET: narrowed(load_preset("multimnist"), 10_000, 3),
        CNN: narrowed(load_preset("multimnist-cnn"), 10_000, 3),
    },
    seeds=(0,),
    partners=(1,),
)


def run(runner: Runner, plan: Plan) -> None:
    """Draw figure 5's pairs with the first CapsNet, then measure each network on each test set."""
    first = replace(plan.networks[CAPSNET], seed=plan.seeds[0])
    runner.measure({"figure": 5, "seed": first.seed}, networks_of(first), partial(_draw_apart, runner, first))
    for seed in plan.seeds:
        for partners in plan.partners:
            for method, config in plan.networks.items():
                key = {"method": method, "seed": seed, "partners": partners}
                seeded = replace(config, seed=seed)
                runner.measure(key, networks_of(seeded), partial(runner.measured_on_test, seeded, partners))


@dataclass(frozen=True)
class Shown:
    """A pair that a network has looked at.

    Attributes:
        pixels: [1, H, W], 0 to 1.
        v: its class capsules, [J, D].
        labels: the two classes.
        longest: the classes of the three longest capsules, the longest first.
    """

    pixels: Tensor
    v: Tensor
    labels: tuple[int, int]
    longest: tuple[int, int, int]

    @property
    def prediction(self) -> tuple[int, int]:
        """The two longest, a right one at its label's place."""
        return in_order_of(self.labels, self.longest[:2])

    @property
    def intruder(self) -> tuple[int, int]:
        """The longest, with the one that comes third in the other's place: it is in neither of both."""
        return in_order_of(self.labels, (self.longest[0], self.longest[2]))


def in_order_of(labels: tuple[int, int], classes: tuple[int, int]) -> tuple[int, int]:
    """Two classes, turned round if one of them is then where it is among the labels."""
    first, second = classes
    return (second, first) if first == labels[1] or second == labels[0] else classes


def columns(pairs: Iterator[Shown]) -> list[tuple[str, Shown, tuple[int, int]] | None]:
    """The columns of figure 5: which kind, the pair, and what it is drawn from; None where pairs run out.

    They are the first pairs that are named right and wrong, whatever these look like.
    """
    count = {kind: BLOCKS * COLUMNS.count(kind) for kind in TITLES}
    right: list[Shown] = []
    wrong: list[Shown] = []
    for pair in pairs:
        (right if pair.prediction == pair.labels else wrong).append(pair)
        if len(right) >= count["right"] + count["starred"] and len(wrong) >= count["label"]:
            break
    plain, starred = right[: count["right"]], right[count["right"] :]
    chosen = {
        "right": iter([(pair, pair.labels) for pair in plain]),
        "starred": iter([(pair, pair.intruder) for pair in starred]),
        "label": iter([(pair, pair.labels) for pair in wrong]),
        "prediction": iter([(pair, pair.prediction) for pair in wrong]),
    }
    found = ((kind, next(chosen[kind], None)) for kind in COLUMNS * BLOCKS)
    return [(kind, *one) if one else None for kind, one in found]


@torch.no_grad()
def look(model: CapsNet, batches: Batches) -> Iterator[Shown]:
    """Every pair of the test set with one partner for each digit, in its order, on the model's device."""
    for batch in batches.fixed(BATCH):
        v = model(batch.pixels)
        longest = lengths(v).topk(3).indices.tolist()
        labels = batch.masks.argmax(dim=2).tolist()
        for index in range(len(batch)):
            yield Shown(batch.pixels[index], v[index], tuple(labels[index]), tuple(longest[index]))


def _draw_apart(runner: Runner, config: RunConfig) -> Row:
    """Figure 5; its pictures go into a file, [columns, 3, H, W]."""
    trained = runner.trained(config)
    assert isinstance(trained.model, CapsNet)
    found = columns(look(trained.model, runner.evaluation_batches(config)))
    nothing = np.zeros((3, config.model.image_size, config.model.image_size), np.uint8)
    pictures = np.stack([_pictures(trained.model, *column[1:]) if column else nothing for column in found])
    return {
        "pictures": runner.keep(f"figure5-{config.seed}", pictures),
        "columns": [_captions(column) for column in found],
        **trained.origin,
    }


@torch.no_grad()
def _pictures(model: CapsNet, pair: Shown, drawn: tuple[int, int]) -> NDArray[np.uint8]:
    """A pair as it is, and what two of its capsules are decoded to, each alone: [3, H, W]."""
    assert model.decoder
    masks = F.one_hot(torch.tensor([drawn], device=pair.v.device), len(pair.v)).float()
    apart = reconstruct(model.decoder, pair.v[None], masks)[0, :, 0]  # [2, H, W]
    return (255 * torch.cat([pair.pixels, apart])).round().byte().cpu().numpy()


def _captions(column: tuple[str, Shown, tuple[int, int]] | None) -> list[str] | None:
    """Below the input and below the reconstructions."""
    if column is None:
        return None
    kind, pair, drawn = column
    return [f"L:({pair.labels[0]}, {pair.labels[1]})", f"{HEADS[kind]}({drawn[0]}, {drawn[1]})"]


def report(rows: list[Row]) -> str:
    """Errors beside the paper's, and what the figure shows."""
    sizes = dict.fromkeys((row["partners"], row["images"]) for row in rows if "partners" in row)
    lines = []
    for partners, images in sizes:
        for method, paper in PAPER.items():
            found = [row for row in rows if (row.get("method"), row.get("partners")) == (method, partners)]
            errors = [row["error_percent"] for row in found]
            lines.append(
                (
                    f"{method}, {images:,} pairs",
                    markdown.mean_and_deviation(errors),
                    f"{paper:.2f}",
                    markdown.difference(errors, paper),
                    markdown.mean_and_deviation([row["object_error_percent"] for row in found]),
                )
            )
    header = ("", "misclassified pairs, %", "paper", "difference", "missed digits, %")
    return markdown.table(header, lines) + TEXT


TEXT = f"""
An answer is a network's two most probable classes; it is wrong unless both are right. The test set pairs
each MNIST test digit with digits of other classes, each shifted by up to 4 pixels in a 36x36 frame: with one
in the fixed test set of 10,000; with {PAPERS_PARTNERS:,} in the paper's 10 million pairs and in those of the
full form. The paper's text says {PAPERS_TEXT} % where its table says {PAPER[CAPSNET]}; it does not count
digits one by one.

The figure is figure 5: L are the labels, R the two classes whose capsules are decoded, each alone, the first
in red and the second in green. P means that these are the network's predictions. A starred column (*)
decodes, in place of one of the digits, the longest capsule of a class that is neither label nor prediction.
The pairs are the first of the fixed test set that the CapsNet of the first seed classifies right, and the
first that it does not.
"""


def plot(rows: list[Row], file: Path) -> None:
    """Figure 5."""
    row = min((row for row in rows if row.get("figure") == 5), key=lambda row: int(row["seed"]))
    pictures = np.load(file.parent / row["pictures"])
    grid: list[list[NDArray[np.uint8] | None]] = []
    captions: list[list[str]] = []
    width = len(COLUMNS)
    for block in range(BLOCKS):
        some = list(islice(zip(pictures, row["columns"], strict=True), block * width, (block + 1) * width))
        grid.append([shown[0] if texts else None for shown, texts in some])
        grid.append([colored(shown[1:]) if texts else None for shown, texts in some])
        captions += [[texts[line] if texts else "" for _, texts in some] for line in (0, 1)]
    titles = [TITLES[kind] for kind in COLUMNS]
    figure.save_grid(file, grid, ["input", "drawn"] * BLOCKS, titles, captions)


def colored(apart: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two gray pictures [2, H, W] over each other, the first in red, the second in green: [H, W, 3]."""
    return np.stack([apart[0], apart[1], np.zeros_like(apart[0])], axis=-1)
