"""Section 6 of Hinton et al. 2018: adversarial examples, for both capsule networks and the CNN.

Images are attacked (`evaluate.attacks`) whether or not they were named right before. In a white box the
network that was attacked is shown the result; in a black box another one is, which the attack knew nothing
of. Targeted attacks go, as the paper's, for each class in turn, on all images.
"""

# B batch, A aims (classes as targets, or the right one), E epsilons, C channels, H and W height and width

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor
from tqdm import tqdm

from training.config import RunConfig, load_preset
from training.data.batches import Batches
from training.data.datasets import DATASETS
from training.evaluate import attacks
from training.experiments.hinton2018 import stereo
from training.experiments.hinton2018.adversarial import (
    ATTACKED,
    BIM,
    CAPSNET,
    CNN,
    FGSM,
    MATRIX,
    OF_TRAINING,
    OTHER_CNN,
    WIDEST,
    Attack,
    answers,
    hits,
)
from training.experiments.hinton2018.attack_report import plot, report
from training.experiments.hinton2018.stereo import SMALLNORB, TOYS, without_decoder
from training.experiments.medium import for_epochs, medium_form
from training.experiments.runner import Row, Runner, Trained, measure_each, networks_of
from training.models.build import Network

BATCH = {"cpu": 64, "cuda": 512}  # images: the gradient of a network takes as much memory as its training
__all__ = ["FULL", "MEDIUM", "MEDIUM_FORM", "QUICK", "plot", "report", "run"]


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: for each data set MATRIX, CAPSNET, CNN and OTHER_CNN, which are shown the same pictures.
        epsilons: how much a pixel may change, of the whole range from black to white; rising.
        bim_steps: of BIM.
        images: how many of the test set, from its start; None takes all.
    """

    networks: dict[str, dict[str, RunConfig]]
    epsilons: tuple[float, ...]
    bim_steps: int
    images: int | None = None


def with_another_cnn(matrix: RunConfig, capsnet: RunConfig, cnn: RunConfig) -> dict[str, RunConfig]:
    """These three, and the CNN with another seed: other random weights, and other held-out images."""
    return {MATRIX: matrix, CAPSNET: capsnet, CNN: cnn, OTHER_CNN: replace(cnn, seed=cnn.seed + 1)}


ON_TOYS = (stereo.ON_TOYS, load_preset("toys"), load_preset("toys-cnn"))
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
MEDIUM_EPOCHS, MEDIUM_IMAGES = 5, 300  # epochs as in the ablation, which shares two of the networks
MEDIUM_FORM = (
    f"{medium_form('the networks of the full form', MEDIUM_EPOCHS)} All of its attacks are made on the first "
    f"{MEDIUM_IMAGES} images of the test set."
)
MEDIUM = replace(
    FULL,
    networks={
        data: {method: for_epochs(config, MEDIUM_EPOCHS) for method, config in networks.items()}
        for data, networks in FULL.networks.items()
    },
    images=MEDIUM_IMAGES,
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


def _attacks(plan: Plan) -> list[Attack]:
    """All six, the cheapest first. Towards a class, images are not there yet: any margin has a gradient."""
    steps = {FGSM: 1, BIM: plan.bim_steps}
    kinds = ((False, WIDEST), (False, OF_TRAINING), (True, WIDEST))
    return [
        Attack(name, steps[name], targeted, plan.epsilons, margins)
        for name in steps
        for targeted, margins in kinds
    ]


def run(runner: Runner, plan: Plan) -> None:
    """Measure gradients and attack each network, on the data that is there."""
    measure_each(runner, plan.networks, partial(_run, runner, plan))


def _run(runner: Runner, plan: Plan, data: str) -> None:
    """All that is measured on one data set.

    Every row is of all networks and of the whole plan, so that none outlives the others.
    """
    configs = plan.networks[data]
    train = cache(runner.trained)  # once, and not at all if there is nothing to find
    load = cache(partial(runner.evaluation_batches, configs[MATRIX], plan.images))
    settings = networks_of(*configs.values())
    settings |= {"at_most": plan.images, "epsilons": list(plan.epsilons), "bim_steps": plan.bim_steps}
    settings |= {"attacked_margins": [WIDEST, OF_TRAINING]}
    for method, config in configs.items():
        key: Row = {"measured": "gradient", "data": data, "method": method}
        runner.measure(key, settings, partial(_measure_gradient, train, load, config))
    for attack in _attacks(plan):
        for source in ATTACKED:
            shown = shown_to(source) if attack.margins == WIDEST else [source]
            victims = {victim: configs[victim] for victim in shown}
            key = {"measured": "attack", "data": data, "attack": attack.name, "targeted": attack.targeted}
            key |= {"margins": attack.margins, "source": source}
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

    With them `pixel_deviation`: the standard deviation of an image's pixels, of both views together, by which
    standardizing divides; median over images.

    Margins are widened, as attacks have them, but for `images_without_in_training_percent`: images that have
    no gradient at all by the margins of training.
    """
    images, trained = load(), train(config)
    widened = attacks.with_widest_margins(config.loss)
    right, without, zeros, sizes, spreads = [], [], [], [], []
    for batch in images.fixed(BATCH[next(trained.model.parameters()).device.type]):
        labels = batch.targets.argmax(dim=1)
        found = attacks.gradient(trained.model, batch.pixels, labels, widened).flatten(1)
        in_training = attacks.gradient(trained.model, batch.pixels, labels, config.loss).flatten(1)
        right.append(answers(trained.model, batch.pixels) == labels)
        without.append((in_training == 0).all(dim=1))
        zeros.append((found == 0).double().mean(dim=1))
        sizes.append(found.double().abs().mean(dim=1))
        spreads.append(batch.pixels.flatten(1).std(dim=1))
    size, zero = torch.cat(sizes), torch.cat(zeros)
    return {
        "images": len(size),
        "accuracy_percent": _percent(torch.cat(right)),
        "zero_percent": _percent(zero),
        "images_without_percent": _percent(zero == 1),
        "images_without_in_training_percent": _percent(torch.cat(without)),
        "pixel_deviation": torch.cat(spreads).median().item(),
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
    size = BATCH[runner.device.type]
    batches = tqdm(images.fixed(size), attack.name, -(-len(images) // size), leave=False)
    counts = runner.count(
        what, batches, partial(hits, list(models.values()), attack=attack, config=config.loss)
    )
    percent = 100 * counts.double() / len(images)  # [victims, A, E]
    found = {"percent": dict(zip(models, percent.mean(dim=1).tolist(), strict=True))}
    if attack.targeted:
        found["percent_by_class"] = dict(zip(models, percent.tolist(), strict=True))
    is_drawn = not attack.targeted and attack.margins == WIDEST
    pictures = _strip(runner, models, images, attack, config) if is_drawn else {}
    return {"images": len(images), "classes": config.model.classes, **found, **pictures}


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
