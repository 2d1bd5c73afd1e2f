"""The two sets of stereo pairs that matrix capsules are measured on, each under its own name.

smallNORB is the paper's and has to be downloaded; toys the repository makes. Where both are there, an
experiment is carried out on both, and no number of one stands for the other.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from training.config import MatrixCapsNetConfig, RunConfig, load_preset
from training.experiments.quick import narrowed
from training.experiments.runner import Row, Runner, networks_of

SMALLNORB, TOYS = "smallnorb", "toys"
PAPERS = SMALLNORB  # the set that the paper's numbers are of


def without_decoder(preset: str) -> RunConfig:
    """A preset's matrix capsules as in the paper, which draw nothing."""
    config = load_preset(preset)
    assert isinstance(config.model, MatrixCapsNetConfig)
    return replace(config, model=replace(config.model, decoder_hidden=()))


def of_the_papers_size(config: RunConfig) -> RunConfig:
    """The network of 310K parameters in place of the smaller one: A = B = C = D = 32."""
    assert isinstance(config.model, MatrixCapsNetConfig)
    model = replace(config.model, conv_channels=32, primary_types=32, conv_caps_types=(32, 32))
    return replace(config, model=model)


ON_TOYS = without_decoder("matrix-toys-3-iterations")
QUICK_IMAGES, QUICK_EPOCHS = 3000, 4


def quick(config: RunConfig) -> RunConfig:
    """The quick form of a network; the same in all experiments, which share it."""
    return narrowed(config, QUICK_IMAGES, QUICK_EPOCHS)


QUICK_CAPSULES = {
    SMALLNORB: quick(without_decoder("matrix-smallnorb-small")),
    TOYS: quick(ON_TOYS),
}
QUICK_CNN = {SMALLNORB: quick(load_preset("smallnorb-cnn")), TOYS: quick(load_preset("toys-cnn"))}


def measure_methods(
    runner: Runner,
    data: str,
    methods: dict[str, RunConfig],
    seeds: tuple[int, ...],
    test_images: int | None,
    find: Callable[[Runner, RunConfig, int | None], Row],
) -> None:
    """A row for each method and seed on a data set; `find` measures one.

    All methods of a seed come first, so that an experiment that is interrupted compares those.
    """
    for seed in seeds:
        for method, config in methods.items():
            seeded = replace(config, seed=seed)
            key: Row = {"data": data, "method": method, "seed": seed}
            settings = networks_of(seeded) | {"at_most": test_images}
            runner.measure(key, settings, partial(find, runner, seeded, test_images))


def said_of(data: str) -> str:
    """What a report has to say of numbers on a data set."""
    if data == PAPERS:
        return ""
    return f"{data} is not {PAPERS}, on which the paper's numbers were measured: the two do not compare."
