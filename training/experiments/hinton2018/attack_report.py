"""Tables and figure of the experiment `attack`."""

from math import log10
from pathlib import Path
from typing import Any

import numpy as np

from training.evaluate import attacks
from training.experiments import figure, markdown
from training.experiments.hinton2018.adversarial import (
    BIM,
    CAPSNET,
    CNN,
    FGSM,
    MATRIX,
    OF_TRAINING,
    OTHER_CNN,
    WIDEST,
)
from training.experiments.hinton2018.stereo import said_of
from training.experiments.runner import Row, data_sets, rows_of

PAPERS_EPSILON = 0.2  # at which the paper's CNN is "significantly below chance"
PAPERS_ORDERS = 2  # of magnitude, by which the gradients of the paper's capsules are smaller than its CNN's


def report(rows: list[Row]) -> str:
    """For each data set what the paper says, the gradients, and every attack's numbers."""
    return "\n".join(_report(rows, data) for data in data_sets(rows)) + TEXT


def _report(rows: list[Row], data: str) -> str:
    of_data = rows_of(rows, data=data)
    measured = rows_of(of_data, measured="gradient")  # before any attack
    gradients = {row["method"]: row for row in measured}
    made = rows_of(of_data, measured="attack")
    attacks_made = _attack_tables(made, measured[0]["pixel_deviation"])
    parts = [_gradient_table(gradients), _said(gradients, made), *attacks_made]
    return f"On **{data}**. {said_of(data)}\n\n" + "\n".join(parts) + f"\n{_how(data, of_data[0])}\n"


def _how(data: str, row: Row) -> str:
    """How much of the experiment was done."""
    count, steps = row["images"], row["bim_steps"]
    which = f"the first {count:,}" if row["at_most"] else f"all {count:,}"
    return (
        f"Attacked are {which} test images of {data} as the networks see them, cropped and resized; BIM "
        f"takes {steps} steps of {attacks.BIM_REACH / steps:.3g} epsilon."
    )


def _gradient_table(gradients: dict[str, Row]) -> str:
    header = (
        "",
        "test accuracy, %",
        "zeros in the gradient, %",
        "images without any, %",
        "images without any, by the margins of training, %",
        "mean size",
        "median over images",
    )
    return markdown.table(
        header,
        [
            (
                method,
                f"{row['accuracy_percent']:.2f}",
                f"{row['zero_percent']:.2f}",
                f"{row['images_without_percent']:.2f}",
                f"{row['images_without_in_training_percent']:.2f}",
                f"{row['mean_size']:.2g}",
                f"{row['median_size']:#.2g}",
            )
            for method, row in gradients.items()
        ],
    )


def _attack_tables(made: list[Row], deviation: float) -> list[str]:
    """One of each attack: a line per network that was attacked and network that was shown the result.

    `deviation` is that of an image's pixels.
    """
    tables = []
    for attack, targeted in dict.fromkeys((row["attack"], row["targeted"]) for row in made):
        found = rows_of(made, attack=attack, targeted=targeted)
        what = "success rate, mean over targets" if targeted else "accuracy"
        epsilons = (f"epsilon {epsilon:g}, {epsilon / deviation:.2g} sd" for epsilon in found[0]["epsilons"])
        header = ("attacked, evaluated", *epsilons)
        lines = [
            (_who(row, victim), *map("{:.1f}".format, of))
            for row in found
            for victim, of in row["percent"].items()
        ]
        title = f"{'Targeted' if targeted else 'Untargeted'} {attack}, {what}, %:"
        tables.append(f"{title}\n\n{markdown.table(header, lines)}")
    return tables


def _who(row: Row, victim: str) -> str:
    itself = "itself" if row["margins"] == WIDEST else f"itself, margins {OF_TRAINING}"
    return f"{row['source']}, {victim if victim != row['source'] else itself}"


def _said(gradients: dict[str, Row], made: list[Row]) -> str:
    """What the paper says in words or numbers, and what is so here; it has only curves besides."""
    fgsm = {row["source"]: row for row in _untargeted(made, WIDEST) if row["attack"] == FGSM}
    in_training = {row["source"]: row for row in _untargeted(made, OF_TRAINING) if row["attack"] == FGSM}
    start = {method: row["accuracy_percent"] for method, row in gradients.items()}
    lines = [
        *([_lowest(fgsm[MATRIX], "")] if MATRIX in fgsm else []),
        *([_lowest(in_training[MATRIX], f", margins {OF_TRAINING}")] if MATRIX in in_training else []),
        *([_at_papers_epsilon(fgsm[CNN])] if CNN in fgsm else []),
        *([_black_box(fgsm[CNN], start)] if CNN in fgsm and {MATRIX, OTHER_CNN} <= start.keys() else []),
        *(_gradients_said(gradients[MATRIX], gradients[CNN]) if {MATRIX, CNN} <= gradients.keys() else []),
    ]
    return markdown.table(("", "paper", "here"), lines)


def _untargeted(made: list[Row], margins: str) -> list[Row]:
    return rows_of(made, targeted=False, margins=margins)


def _lowest(row: Row, margins: str) -> tuple[str, ...]:
    percent, chance = row["percent"][MATRIX], f"never below chance, {100 / row['classes']:g}"
    at = row["epsilons"][int(np.argmin(percent))]
    return (
        f"lowest accuracy of {MATRIX}, untargeted FGSM{margins}, %",
        chance,
        f"{min(percent):.1f}, at epsilon {at:g}",
    )


def _at_papers_epsilon(row: Row) -> tuple[str, ...]:
    percent = dict(zip(row["epsilons"], row["percent"][CNN], strict=True))
    what = f"accuracy of the {CNN} at epsilon {PAPERS_EPSILON:g}, untargeted FGSM, %"
    found = markdown.number(percent.get(PAPERS_EPSILON), 1)
    return what, f"significantly below {100 / row['classes']:g}", found


def _black_box(row: Row, start: dict[str, float]) -> tuple[str, ...]:
    """How much less accuracy matrix capsules lose than another CNN, which has another accuracy unattacked."""
    capsules, cnn = row["percent"][MATRIX], row["percent"][OTHER_CNN]
    before = start[MATRIX] - start[OTHER_CNN]
    spared = [ours - other - before for ours, other in zip(capsules, cnn, strict=True)]
    found = [f"{points:+.1f} at {epsilon:g}" for epsilon, points in zip(row["epsilons"], spared, strict=True)]
    what = f"black box, FGSM computed on the {CNN}: points that {MATRIX} lose less than {OTHER_CNN}"
    return what, "not noticeably better", ", ".join(found)


def _gradients_said(capsules: Row, cnn: Row) -> list[tuple[str, ...]]:
    zeros = f"{capsules['zero_percent']:.2f} and {cnn['zero_percent']:.2f}"
    what = f"orders of magnitude by which gradients of {MATRIX} are smaller than the {CNN}'s"
    return [
        (f"zeros in the gradient of {MATRIX} and of the {CNN}, %", "fewer", zeros),
        (what, str(PAPERS_ORDERS), _orders(capsules, cnn)),
    ]


def _orders(smaller: Row, larger: Row) -> str:
    """Blank where one of them has no gradient at all."""
    if not smaller["mean_size"] or not larger["mean_size"]:
        return ""
    return f"{log10(larger['mean_size'] / smaller['mean_size']):.1f}"


TEXT = """
Epsilon is the largest change of a pixel, on the range from black (0) to white (1), and beside it in standard
deviations of an image's pixels, median over images: the paper does not say whether its epsilon counts before
or after images are brought to unit variance. Pixels stay between 0 and 1. Images that were misclassified
before the attack count, too. The success rate of a targeted attack is the percentage of all images that are
classified as the target, averaged over all classes as targets, as in the paper; without an attack it is that
of chance. An attack increases each network's training loss with margins widened to 1. Where a line says
"margins of training", it increases that loss as it was in training: the images of the fifth column then have
no gradient, and resist for that reason alone. Zeros are counted in the gradients at the start of an
untargeted attack; their unit is loss per full range of a pixel. The paper's figure 3 shows curves and no
numbers. "Another CNN" is the CNN with another seed, which also chooses the validation images, on toys and
smallNORB other held-out toys: it is not trained on quite the same images.
"""


PANELS = ((False, False), (False, True), (True, False), (True, True))  # targeted, black box
COLORS = {MATRIX: figure.OURS, CAPSNET: "#3a9a6b", CNN: figure.OTHER, OTHER_CNN: "#8a4a9e"}
LINES = {FGSM: "-", BIM: "--"}
RIGHT, WRONG = "#7dff8a", "#ff7d7d"  # answers, on gray


def plot(rows: list[Row], file: Path) -> None:
    """For each data set: untargeted and targeted, white and black box; below, the first image attacked."""
    sets = data_sets(rows)
    with figure.saved(file, columns=2, rows=3 * len(sets)) as axes:
        for data in sets:
            panels, axes = axes[: len(PANELS)], axes[len(PANELS) :]
            strips, axes = axes[:2], axes[2:]
            of_data = rows_of(rows, data=data)
            start = {row["method"]: row["accuracy_percent"] for row in of_data if "method" in row}
            made = rows_of(of_data, measured="attack", margins=WIDEST)
            for axis, (targeted, black) in zip(panels, PANELS, strict=True):
                some = rows_of(made, targeted=targeted)
                _plot_panel(axis, some, start, black)
                box = f"black box, computed on the {CNN}" if black else "white box"
                axis.set_title(f"{data}, {'targeted' if targeted else 'untargeted'}, {box}")
                axis.set_ylabel("taken for the target, %" if targeted else "test accuracy, %")
            for axis, attack in zip(strips, LINES, strict=True):
                some = rows_of(made, attack=attack, targeted=False)
                _plot_strips(axis, file.parent, some)
                axis.set_title(f"{data}, untargeted {attack}, epsilon")


def _plot_panel(axis: Any, made: list[Row], start: dict[str, float], black: bool) -> None:
    """A line for each attack and network that is shown the result, beginning where nothing is changed."""
    axis.set_ylim(-3, 103)
    axis.set_xlabel("epsilon")
    if not made:
        return
    chance, epsilons = 100 / made[0]["classes"], [0, *made[0]["epsilons"]]
    for row in made:
        if black and row["source"] != CNN:
            continue
        for victim in row["percent"]:
            if (victim != row["source"]) != black:
                continue
            percent = [chance if row["targeted"] else start[victim], *row["percent"][victim]]
            line, label = LINES[row["attack"]], f"{victim}, {row['attack']}"
            axis.plot(epsilons, percent, line, color=COLORS[victim], label=label)
    axis.axhline(chance, color=figure.PAPER, linewidth=0.8, linestyle=":", label="chance")
    axis.set_xscale("symlog", linthresh=epsilons[1], linscale=0.4)
    axis.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axis.minorticks_off()
    axis.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    axis.set_xlim(0, epsilons[-1])


def _plot_strips(axis: Any, folder: Path, made: list[Row]) -> None:
    """The first image at each epsilon, a line for each network that was attacked, with its answers."""
    axis.grid(visible=False)
    axis.set_frame_on(False)
    axis.set_xticks([])
    axis.set_yticks([])
    if not made:
        return
    pictures = np.stack([np.load(folder / row["pictures"]) for row in made])  # [count, 1 + E, H, W]
    count, columns, height, width = pictures.shape
    mosaic = pictures.swapaxes(1, 2).reshape(count * height, columns * width)
    axis.imshow(mosaic, cmap="gray", vmin=0, vmax=255)
    epsilons = [f"{epsilon:g}" for epsilon in (0, *made[0]["epsilons"])]
    axis.set_xticks((np.arange(columns) + 0.5) * width - 0.5, epsilons)
    axis.set_yticks((np.arange(count) + 0.5) * height - 0.5, [row["source"] for row in made])
    axis.tick_params(length=0)
    axis.xaxis.tick_top()
    for n, row in enumerate(made):
        for c, answer in enumerate(row["answers"]):
            color = RIGHT if answer == row["label"] else WRONG
            paper = {"facecolor": "black", "linewidth": 0, "pad": 1}
            axis.text(width * c, height * (n + 1) - 2, answer, fontsize=6, color=color, bbox=paper)
