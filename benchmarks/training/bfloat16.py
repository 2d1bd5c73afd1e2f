"""What training in bfloat16 costs in accuracy on a CPU: held-out error of the same runs in it and in float32.

    python -m benchmarks.training.bfloat16                  20 minutes on two cores
    python -m benchmarks.training.bfloat16 --network cnn    20 minutes; data from CAPSNET_DATA, or data

The paper's MNIST network, or the CNN of its affNIST experiment with half the channels, learns from 12,000
digits for four epochs, with several seeds, once as a CPU with instructions for bfloat16 trains it and once as
others do. Both see the same images in the same order. The 5,000 digits that they are measured on are held out
of training; float32 computes all answers.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from unittest.mock import patch

import torch

from training.config import CnnConfig, RunConfig, load_preset
from training.data.download import data_root
from training.data.run_images import training_batches
from training.evaluate.evaluation import Evaluation, evaluate
from training.experiments.medium import for_epochs
from training.experiments.runner import Runner
from training.fit import step
from training.fit.memory import keep_freed_memory
from training.models.cpu import convolution

SEEDS = (0, 1, 2)
IMAGES = 12000
EPOCHS = 4


def measure(config: RunConfig, bfloat16: bool, root: Path) -> Evaluation:
    """Train on the CPU; held-out digits, measured at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(convolution, "has_bfloat16_instructions", lambda: bfloat16),
        patch.object(step, "has_bfloat16_instructions", lambda: bfloat16),
    ):
        runner = Runner(Path(folder), Path(folder), root, torch.device("cpu"))
        model = runner.trained_to_the_end(config).model
    _, held_out = training_batches(config, root)
    assert held_out is not None
    return evaluate(model, held_out, config.loss)


def run_config(network: str) -> RunConfig:
    """What is trained, but for the seed; a CNN of the paper's width would take an hour in float32."""
    config = load_preset({"capsnet": "mnist", "cnn": "affnist-cnn"}[network])
    if isinstance(config.model, CnnConfig):
        blocks = tuple(replace(block, channels=block.channels // 2) for block in config.model.blocks)
        config = replace(config, model=replace(config.model, blocks=blocks))
    return replace(for_epochs(config, EPOCHS), data=replace(config.data, training_images=IMAGES))


def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--network", choices=("capsnet", "cnn"), default="capsnet", help="which one is trained (capsnet)"
    )
    config = run_config(parser.parse_args().network)
    keep_freed_memory()
    found: dict[str, list[Evaluation]] = {"bfloat16": [], "float32": []}
    for seed in SEEDS:  # in turn: what else the machine does meets both
        for name, evaluations in found.items():
            evaluations.append(measure(replace(config, seed=seed), name == "bfloat16", data_root(None)))
    print(f"\n{'held-out digits':16}{'error, %':>18}{'classification loss':>20}   errors with each seed")
    for name, evaluations in found.items():
        errors = [one.error_percent for one in evaluations]
        losses = [one.classification_loss for one in evaluations]
        each = ", ".join(f"{error:.2f}" for error in errors)
        error, loss = (f"{mean(numbers):.4f} ± {stdev(numbers):.4f}" for numbers in (errors, losses))
        print(f"{name:16}{error:>18}{loss:>20}   {each}")


if __name__ == "__main__":
    main()
