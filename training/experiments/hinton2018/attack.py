"""Section 6 of Hinton et al. 2018: adversarial examples, for both capsule networks and the CNN.

Images are attacked (`evaluate.attacks`) whether or not they were named right before. In a white box the
network that was attacked is shown the result; in a black box another one is, which the attack knew nothing
of. Targeted attacks go, as the paper's, for each class in turn, on all images.
"""

# B batch, A aims (classes as targets, or the right one), E epsilons, C channels, H and W height and width

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import log10
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from training.config import LossConfig, RunConfig, load_preset
from training.data.batches import Batch, Batches
from training.data.datasets import DATASETS
from training.evaluate import attacks
from training.experiments import figure, markdown
from training.experiments.hinton2018 import stereo
from training.experiments.hinton2018.stereo import SMALLNORB, TOYS, said_of, without_decoder
from training.experiments.runner import Row, Runner, Trained, data_sets, measure_each, networks_of
from training.models.baselines import BaselineCnn
from training.models.build import Network

MATRIX, CAPSNET, CNN, OTHER_CNN = "matrix capsules", "CapsNet", "CNN", "another CNN"
ATTACKED = (MATRIX, CAPSNET, CNN)
FGSM, BIM = "FGSM", "BIM"
BATCH = 64  # images: the gradient of a network takes as much memory as its training
PAPERS_EPSILON = 0.2  # at which the paper's CNN is "significantly below chance"
PAPERS_ORDERS = 2  # of magnitude, by which the gradients of the paper's capsules are smaller than its CNN's


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: for each data set MATRIX, CAPSNET, CNN and OTHER_CNN, which are shown the same pictures.
        epsilons: how much a pixel may change, of the whole range from black to white; rising.
        bim_steps: of BIM.
        images: the first so many of the test set; None takes all.
    """

    networks: dict[str, dict[str, RunConfig]]
    epsilons: tuple[float, ...]
    bim_steps: int
    images: int | None = None


def with_another_cnn(matrix: RunConfig, capsnet: RunConfig, cnn: RunConfig) -> dict[str, RunConfig]:
    """These three, and a CNN from other random weights."""
    return {MATRIX: matrix, CAPSNET: capsnet, CNN: cnn, OTHER_CNN: replace(cnn, seed=cnn.seed + 1)}


ON_TOYS = (without_decoder("matrix-toys"), load_preset("toys"), load_preset("toys-cnn"))
CAPSNET_ON_SMALLNORB, CNN_ON_SMALLNORB = load_preset("smallnorb"), load_preset("smallnorb-cnn")
FULL = Plan(
    {
        SMALLNORB: with_another_cnn(
            without_decoder("matrix-smallnorb"), CAPSNET_ON_SMALLNORB, CNN_ON_SMALLNORB
        ),
        TOYS: with_another_cnn(*ON_TOYS),
    },
    epsilons=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
    bim_steps=10,
)
QUICK = Plan(
    {
        data: with_another_cnn(stereo.QUICK_CAPSULES[data], stereo.quick(capsnet), stereo.QUICK_CNN[data])
        for data, capsnet in ((SMALLNORB, CAPSNET_ON_SMALLNORB), (TOYS, load_preset("toys")))
    },
    epsilons=(0.005, 0.02, 0.2),
    bim_steps=3,
    images=100,
)


@dataclass(frozen=True)
class Attack:
    """A way to make adversarial examples.

    Attributes:
        name: FGSM or BIM.
        steps: of BIM; FGSM has one.
        targeted: towards each class in turn; else away from the right one.
        epsilons: how much a pixel may change.
    """

    name: str
    steps: int
    targeted: bool
    epsilons: tuple[float, ...]

    def examples(self, model: Network, pixels: Tensor, classes: Tensor, config: LossConfig) -> Tensor:
        """Images [B, C, H, W] as they are at each epsilon, [E, B, C, H, W]; see `evaluate.attacks`."""
        if self.name == FGSM:  # goes in one direction, whatever epsilon is
            towards = attacks.direction(model, pixels, classes, config, self.targeted)
            return torch.stack([attacks.moved(pixels, towards, epsilon) for epsilon in self.epsilons])
        of_bim = partial(attacks.bim, steps=self.steps, config=config, targeted=self.targeted)
        return torch.stack([of_bim(model, pixels, classes, epsilon) for epsilon in self.epsilons])

    def classes(self, targets: Tensor) -> Tensor:
        """What the loss takes images for: the right class, or every one in turn, int64 [A, B].

        `targets` is 1 for the right class, [B, J].
        """
        if not self.targeted:
            return targets.argmax(dim=1).unsqueeze(0)
        return torch.arange(targets.shape[1], device=targets.device)[:, None].expand(-1, len(targets))


def _attacks(plan: Plan) -> list[Attack]:
    """All four, the cheapest first."""
    steps = {FGSM: 1, BIM: plan.bim_steps}
    both = (False, True)
    return [Attack(name, steps[name], targeted, plan.epsilons) for name in steps for targeted in both]


def run(runner: Runner, plan: Plan) -> None:
    """Measure gradients and attack each network, on the data that is there."""
    measure_each(plan.networks, partial(_run, runner, plan))


def _run(runner: Runner, plan: Plan, data: str) -> None:
    """All that is measured on one data set.

    Every row is of all networks and of the whole plan, so that none outlives the others.
    """
    configs = plan.networks[data]
    train = cache(runner.trained)  # once, and not at all if there is nothing to find
    load = cache(partial(runner.evaluation_batches, configs[MATRIX], plan.images))
    settings = networks_of(*configs.values())
    settings |= {"at_most": plan.images, "epsilons": list(plan.epsilons), "bim_steps": plan.bim_steps}
    for method, config in configs.items():
        key: Row = {"measured": "gradient", "data": data, "method": method}
        runner.measure(key, settings, partial(_measure_gradient, train, load, config))
    for attack in _attacks(plan):
        for source in ATTACKED:
            victims = {victim: configs[victim] for victim in shown_to(source)}
            key = {"measured": "attack", "data": data, "attack": attack.name, "targeted": attack.targeted}
            key["source"] = source
            find = partial(_measure_attack, runner, train, load, victims, attack, key | settings)
            runner.measure(key, settings, find)


def shown_to(source: str) -> list[str]:
    """Which networks are shown the examples made on one: itself first; those of the CNN another CNN, too."""
    victims = [source, *(method for method in ATTACKED if method != source)]
    return [*victims, OTHER_CNN] if source == CNN else victims


Train = Callable[[RunConfig], Trained]
Load = Callable[[], Batches]


def _measure_gradient(train: Train, load: Load, config: RunConfig) -> Row:
    """Size of the gradients that an untargeted attack begins with, and how many of them are exactly 0.

    Margins are widened, as attacks have them, but for `images_without_in_training_percent`: images that have
    no gradient at all by the margins of training.
    """
    images, trained = load(), train(config)
    climbed = attacks.with_widest_margins(config.loss)
    right, without, zeros, sizes = [], [], [], []
    for batch in images.fixed(BATCH):
        labels = batch.targets.argmax(dim=1)
        found = attacks.gradient(trained.model, batch.pixels, labels, climbed).flatten(1)
        in_training = attacks.gradient(trained.model, batch.pixels, labels, config.loss).flatten(1)
        right.append(answers(trained.model, batch.pixels) == labels)
        without.append((in_training == 0).all(dim=1))
        zeros.append((found == 0).double().mean(dim=1))
        sizes.append(found.double().abs().mean(dim=1))
    size, zero = torch.cat(sizes), torch.cat(zeros)
    return {
        "images": len(size),
        "accuracy_percent": _percent(torch.cat(right)),
        "zero_percent": _percent(zero),
        "images_without_percent": _percent(zero == 1),
        "images_without_in_training_percent": _percent(torch.cat(without)),
        "mean_size": size.mean().item(),
        "median_size": size.median().item(),
        **trained.origin,
    }


def _percent(shares: Tensor) -> float:
    return 100 * shares.double().mean().item()


def _measure_attack(
    runner: Runner, train: Train, load: Load, victims: dict[str, RunConfig], attack: Attack, what: Row
) -> Row:
    """Attack the first of these networks, and show what is made to all of them; `what` names the row.

    Returns:
        `percent`, for each network a number per epsilon: of images that are named right, or in a targeted
        attack the mean over classes of `percent_by_class`, of all images that are taken for this class when
        it is the target.
    """
    models = {victim: train(config).model for victim, config in victims.items()}
    config, images = next(iter(victims.values())), load()
    batches = tqdm(images.fixed(BATCH), attack.name, -(-len(images) // BATCH), leave=False)
    counts = runner.count(
        what, batches, partial(hits, list(models.values()), attack=attack, config=config.loss)
    )
    percent = 100 * counts.double() / len(images)  # [victims, A, E]
    found = {"percent": dict(zip(models, percent.mean(dim=1).tolist(), strict=True))}
    if attack.targeted:
        found["percent_by_class"] = dict(zip(models, percent.tolist(), strict=True))
    pictures = {} if attack.targeted else _strip(runner, models, images, attack, config)
    return {"images": len(images), "classes": config.model.classes, **found, **pictures}


def hits(models: Sequence[Network], batch: Batch, attack: Attack, config: LossConfig) -> Tensor:
    """How many images of a batch each network takes for the class that the attack is about.

    Args:
        models: the first is attacked, all are shown what is made.
        batch: of images.
        attack: untargeted it is about the right class, targeted about every one in turn.
        config: of the loss of the network that is attacked.

    Returns:
        int64 [models, A, E], on the CPU.
    """
    classes = attack.classes(batch.targets)
    counts = torch.zeros(len(models), len(classes), len(attack.epsilons), dtype=torch.int64)
    for a, of_attack in enumerate(classes):
        for e, pixels in enumerate(attack.examples(models[0], batch.pixels, of_attack, config)):
            for m, model in enumerate(models):
                counts[m, a, e] = (answers(model, pixels) == of_attack).sum()
    return counts


@torch.no_grad()
def answers(model: Network, pixels: Tensor) -> Tensor:
    """The class that a network names for each image [B, C, H, W], int64 [B]."""
    scores = model(pixels) if isinstance(model, BaselineCnn) else model.classify(pixels).probabilities
    return scores.argmax(dim=1)


def _strip(
    runner: Runner, models: dict[str, Network], images: Batches, attack: Attack, config: RunConfig
) -> Row:
    """The first image, untouched and at each epsilon, and what the attacked network takes it for."""
    method, model = next(iter(models.items()))
    batch = next(images.fixed(1))
    made = attack.examples(model, batch.pixels, batch.targets.argmax(dim=1), config.loss)
    pixels = torch.cat([batch.pixels, *made])  # [1 + E, C, H, W]
    name = f"{config.data.name}-{attack.name}-{method}".lower().replace(" ", "-")
    names = DATASETS[config.data.name].class_names
    return {
        "label": names[int(batch.targets.argmax())],
        "pictures": runner.keep(name, (255 * pixels[:, 0]).round().byte().cpu().numpy()),  # of the first view
        "answers": [names[answer] for answer in answers(model, pixels).tolist()],
    }


def report(rows: list[Row]) -> str:
    """For each data set what the paper says, the gradients, and every attack's numbers."""
    return "\n".join(_report(rows, data) for data in data_sets(rows)) + TEXT


def _report(rows: list[Row], data: str) -> str:
    of_data = [row for row in rows if row["data"] == data]
    gradients = {row["method"]: row for row in of_data if row["measured"] == "gradient"}
    made = [row for row in of_data if row["measured"] == "attack"]
    parts = [_gradient_table(gradients), _said(gradients, made), *_attack_tables(made)]
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
                f"{row['median_size']:.2g}",
            )
            for method, row in gradients.items()
        ],
    )


def _attack_tables(made: list[Row]) -> list[str]:
    """One of each attack: a line per network that was attacked and network that was shown the result."""
    tables = []
    for attack, targeted in dict.fromkeys((row["attack"], row["targeted"]) for row in made):
        found = [row for row in made if (row["attack"], row["targeted"]) == (attack, targeted)]
        what = "success rate, mean over targets" if targeted else "accuracy"
        header = ("made on, shown to", *(f"epsilon {epsilon:g}" for epsilon in found[0]["epsilons"]))
        lines = [
            (f"{row['source']}, {victim if victim != row['source'] else 'itself'}", *map("{:.1f}".format, of))
            for row in found
            for victim, of in row["percent"].items()
        ]
        title = f"{'Targeted' if targeted else 'Untargeted'} {attack}, {what}, %:"
        tables.append(f"{title}\n\n{markdown.table(header, lines)}")
    return tables


def _said(gradients: dict[str, Row], made: list[Row]) -> str:
    """What the paper says in words or numbers, and what is so here; it has only curves besides."""
    fgsm = {row["source"]: row for row in made if (row["attack"], row["targeted"]) == (FGSM, False)}
    lines = [
        *([_lowest(fgsm[MATRIX])] if MATRIX in fgsm else []),
        *([_at_papers_epsilon(fgsm[CNN]), _black_box(fgsm[CNN])] if CNN in fgsm else []),
        *(_gradients_said(gradients[MATRIX], gradients[CNN]) if {MATRIX, CNN} <= gradients.keys() else []),
    ]
    return markdown.table(("", "paper", "here"), lines)


def _lowest(row: Row) -> tuple[str, ...]:
    percent, chance = row["percent"][MATRIX], f"never below chance, {100 / row['classes']:g}"
    at = row["epsilons"][int(np.argmin(percent))]
    return (
        f"lowest accuracy of {MATRIX}, untargeted FGSM, %",
        chance,
        f"{min(percent):.1f}, at epsilon {at:g}",
    )


def _at_papers_epsilon(row: Row) -> tuple[str, ...]:
    percent = dict(zip(row["epsilons"], row["percent"][CNN], strict=True))
    what = f"accuracy of the {CNN} at epsilon {PAPERS_EPSILON:g}, untargeted FGSM, %"
    found = markdown.number(percent.get(PAPERS_EPSILON), 1)
    return what, f"significantly below {100 / row['classes']:g}", found


def _black_box(row: Row) -> tuple[str, ...]:
    """The mean over epsilons of how much better matrix capsules do than another CNN."""
    capsules, cnn = row["percent"][MATRIX], row["percent"][OTHER_CNN]
    what = f"black box, FGSM made on the {CNN}: accuracy of {MATRIX} less that of {OTHER_CNN}, points"
    return what, "not noticeably better", f"{mean(capsules) - mean(cnn):+.1f}, mean over epsilons"


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
Epsilon is how much a pixel may change, of the whole range from black to white; whether the paper's is counted
before or after its pictures are brought to unit variance is not said. Pixels stay between 0 and 1. Images
that were named wrong before count, too. The success rate of a targeted attack is the share of
all images that are taken for the target, mean over all classes as targets, as in the paper: without any
change it is that of chance. What is climbed is each network's training loss, its margins as far apart as they
can be: with those of training, the images of the fifth column have no gradient at all, and would be safe from
these attacks for that reason alone. Zeros are counted in the gradients that an untargeted attack begins with,
whose unit is loss per whole range of a pixel. The paper's figure 3 has curves and no numbers.
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
            of_data = [row for row in rows if row["data"] == data]
            start = {row["method"]: row["accuracy_percent"] for row in of_data if "method" in row}
            made = [row for row in of_data if row["measured"] == "attack"]
            for axis, (targeted, black) in zip(panels, PANELS, strict=True):
                some = [row for row in made if row["targeted"] == targeted]
                _plot_panel(axis, some, start, black)
                box = f"black box, made on the {CNN}" if black else "white box"
                axis.set_title(f"{data}, {'targeted' if targeted else 'untargeted'}, {box}")
                axis.set_ylabel("taken for the target, %" if targeted else "test accuracy, %")
            for axis, attack in zip(strips, LINES, strict=True):
                some = [row for row in made if row["attack"] == attack and not row["targeted"]]
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
