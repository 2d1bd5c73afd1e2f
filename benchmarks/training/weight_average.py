"""What an average of the weights is worth: test error of both at the end of the same runs.

    python -m benchmarks.training.weight_average        five minutes on a CPU; data from CAPSNET_DATA, or data

The average changes nothing in the weights that it is made of, so each network is trained once and measured
twice. It is the quick form of the paper's MNIST network, once at the paper's decay, which is next to none in
so few steps, and once with the rate falling to 0 over the last two epochs; each with several seeds.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

from training.config import RunConfig, load_preset
from training.data.download import data_root
from training.data.run_images import evaluation_batches
from training.evaluate.evaluation import evaluate
from training.experiments.quick import narrowed
from training.experiments.runner import Runner, describe
from training.models.build import build
from training.runs import checkpoint

SHARE = 0.99  # of the average that a step keeps
SEEDS = (0, 1, 2)
IMAGES = 4000
EPOCHS = 3


def schedules() -> dict[str, RunConfig]:
    """What is trained, by how its rate falls."""
    quick = narrowed(load_preset("mnist"), IMAGES, EPOCHS)
    falling = replace(quick, optimizer=replace(quick.optimizer, ema_decay=SHARE))
    steady = replace(falling, optimizer=replace(falling.optimizer, cooldown_epochs=0))
    return {"the paper's decay": steady, "rate falling to 0": falling}


def measure(runner: Runner, config: RunConfig) -> tuple[float, float]:
    """Test error of the last weights and of their average, percent."""
    newest = checkpoint.newest_checkpoint(runner.trained(config).run)
    assert newest is not None
    weights, average = build(config.model), build(config.model)
    checkpoint.load_trained_weights(weights, newest)
    checkpoint.load_weights(average, newest)
    test = evaluation_batches(config, runner.root)
    found = [evaluate(model.to(runner.device), test, config.loss) for model in (weights, average)]
    return found[0].error_percent, found[1].error_percent


def main() -> None:
    """Train, measure and print."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(Path(folder), Path(folder), data_root(None), device)
        found = {
            name: [measure(runner, replace(config, seed=seed)) for seed in SEEDS]
            for name, config in schedules().items()
        }
    print(f"\n{describe(next(iter(schedules().values())))}; the average keeps {SHARE:g} a step")
    print(f"{'test error, %':24}{'weights':>9}{'average':>9}   each seed")
    for name, errors in found.items():
        each = ", ".join(f"{weights:.2f} to {average:.2f}" for weights, average in errors)
        weights, average = (mean(column) for column in zip(*errors, strict=True))
        print(f"{name:24}{weights:9.2f}{average:9.2f}   {each}")


if __name__ == "__main__":
    main()
