"""Error by the number of training examples, CapsNet and baseline CNN, on MNIST.

Sec. 8 of Sabour et al. 2017 hopes that capsules avoid the CNN's need for exponentially more training images;
the paper does not measure it. Here networks of both kinds take the same number of optimizer steps whatever
they are trained on, so that nothing but the images differs.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

from matplotlib.ticker import LogLocator
from scipy import stats

from training.config import CnnConfig, RunConfig, load_preset
from training.evaluate.evaluation import evaluate
from training.experiments import figure, markdown
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, networks_of, rows_of

CAPSNET, CNN = "CapsNet", "CNN"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Plan:
    """How much of the experiment is done.

    Attributes:
        networks: CapsNet and CNN, trained on the most images.
        images: how many of these each network is trained on.
        seeds: of the weights, and of the choice of images, which is the same for both networks.
        test_images: how many are measured on; None takes all.
    """

    networks: dict[str, RunConfig]
    images: tuple[int, ...]
    seeds: tuple[int, ...]
    test_images: int | None = None


def repeated(config: RunConfig, epoch_images: int, epochs: int) -> RunConfig:
    """A configuration whose steps do not depend on the images: fewer are shown more often.

    Over the last half of the steps the rate falls to 0, so that the last weights are as good as any.
    """
    data = replace(config.data, epoch_images=epoch_images)
    optimizer = replace(config.optimizer, epochs=epochs, cooldown_epochs=epochs - epochs // 2)
    return replace(config, data=data, optimizer=optimizer)


def halved(config: RunConfig) -> RunConfig:
    """A CNN that learns as many images in a second as the quick form's CapsNet."""
    assert isinstance(config.model, CnnConfig)
    blocks = tuple(replace(block, channels=block.channels // 2) for block in config.model.blocks)
    return replace(config, model=replace(config.model, blocks=blocks))


FULL_IMAGES, QUICK_IMAGES = 55_000, 3000  # 55,000: all but the 5,000 that are held out
FULL = Plan(
    {
        CAPSNET: repeated(load_preset("mnist"), FULL_IMAGES, 40),
        CNN: repeated(load_preset("mnist-cnn"), FULL_IMAGES, 40),
    },
    (100, 300, 1000, 3000, 10_000, FULL_IMAGES),
    (0, 1, 2, 3, 4),
)
QUICK = Plan(
    {
        CAPSNET: repeated(narrowed(load_preset("mnist"), QUICK_IMAGES, 4), QUICK_IMAGES, 4),
        CNN: repeated(halved(narrowed(load_preset("mnist-cnn"), QUICK_IMAGES, 4)), QUICK_IMAGES, 4),
    },
    (100, 500, QUICK_IMAGES),
    (0, 1, 2),
    test_images=2000,
)


def run(runner: Runner, plan: Plan) -> None:
    """Train both networks on each number of images, with each seed, and measure them."""
    for seed in plan.seeds:
        for images in plan.images:
            for method, config in plan.networks.items():
                data = replace(config.data, training_images=images)
                few = replace(config, data=data, seed=seed)
                key = {"method": method, "training_images": images, "seed": seed}
                settings = networks_of(few) | {"test_images": plan.test_images}
                runner.measure(key, settings, partial(_measure, runner, few, plan.test_images))


def _measure(runner: Runner, config: RunConfig, test_images: int | None) -> Row:
    """Measure the last weights: to choose the best ones takes more labeled images than were trained on."""
    trained = runner.trained_to_the_end(config)
    found = evaluate(trained.model, runner.evaluation_batches(config, test_images), config.loss)
    return {
        "error_percent": found.error_percent,
        "images": found.images,
        "batch": config.optimizer.batch_size,
        **trained.origin,
    }


def report(rows: list[Row]) -> str:
    """Errors of both by the number of images, and which is lower."""
    lines = [
        (
            f"{images:,}",
            markdown.mean_and_deviation(_errors(rows, CAPSNET, images)),
            markdown.mean_and_deviation(_errors(rows, CNN, images)),
            markdown.mean_and_deviation(_differences(rows, images)),
        )
        for images in _sizes(rows)
    ]
    header = ("training images", "CapsNet, test error, %", "CNN, test error, %", "CapsNet - CNN")
    return f"{markdown.table(header, lines)}\n{_said(rows)}\n"


def _said(rows: list[Row]) -> str:
    """Who is better where, and what the table is of."""
    if not rows:
        return "The paper claims that capsules need fewer training images, but does not measure it."
    verdicts = {images: _verdict(_differences(rows, images)) for images in _sizes(rows)}
    said = [
        f"{verdict} with {', '.join(f'{images:,}' for images in verdicts if verdicts[images] == verdict)} "
        "training images."
        for verdict in dict.fromkeys(verdicts.values())
    ]
    steps = markdown.counts(row["steps"] for row in rows)
    tested = markdown.counts(row["images"] for row in rows)
    said.append(
        f"Every network took {steps} steps of {rows[0]['batch']} images, fewer images again and again; with "
        "the same seed both are trained on the same images. Their last weights were measured on "
        f"{_first(rows)}{tested} test images of MNIST. Differences are of networks with the same seed, mean "
        f"± deviation (seeds); better is what is so by a paired t test with {CONFIDENCE:.0%} confidence. A "
        "network that is better with few and with many images alike may learn more from each step, rather "
        "than need fewer images. The paper claims that capsules need fewer training images, but does not "
        "measure it: there is no number of its to compare with."
    )
    return " ".join(said)


def _first(rows: list[Row]) -> str:
    """Of MNIST's test images the first ones are easier than the others."""
    return "the " if all(row["images"] == 10_000 for row in rows) else "the first "


def _verdict(differences: list[float]) -> str:
    """Which network is better, if a paired t test tells them apart."""
    if (count := len(differences)) < 2:
        return "Too few seeds to tell"
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
    if abs(mean(differences)) <= quantile * stdev(differences) / count**0.5:
        return "No clear difference"
    return f"{CAPSNET if mean(differences) < 0 else CNN} is better"


def plot(rows: list[Row], file: Path) -> None:
    """Error of both networks by the number of images: each seed, and the mean."""
    with figure.saved(file) as (axis,):
        for method, color in ((CAPSNET, figure.OURS), (CNN, figure.OTHER)):
            errors = {images: _errors(rows, method, images) for images in _sizes(rows)}
            errors = {images: found for images, found in errors.items() if found}
            for images, found in errors.items():
                axis.plot([images] * len(found), found, "o", color=color, alpha=0.4, markersize=4)
            axis.plot(list(errors), [mean(found) for found in errors.values()], color=color)
        axis.set(xscale="log", yscale="log", xlabel="training images", ylabel="test error on MNIST, %")
        axis.set_xticks(_sizes(rows), [f"{images:,}" for images in _sizes(rows)])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        figure.legend(axis, {CAPSNET: ("o", figure.OURS), CNN: ("o", figure.OTHER)})


def _sizes(rows: list[Row]) -> list[int]:
    return sorted({row["training_images"] for row in rows})


def _errors(rows: list[Row], method: str, images: int) -> list[float]:
    return list(_by_seed(rows, method, images).values())


def _differences(rows: list[Row], images: int) -> list[float]:
    """CapsNet's error less the CNN's, for each seed that both have been trained with."""
    capsnet, cnn = _by_seed(rows, CAPSNET, images), _by_seed(rows, CNN, images)
    return [capsnet[seed] - cnn[seed] for seed in capsnet if seed in cnn]


def _by_seed(rows: list[Row], method: str, images: int) -> dict[int, float]:
    return {row["seed"]: row["error_percent"] for row in rows_of(rows, method=method, training_images=images)}
