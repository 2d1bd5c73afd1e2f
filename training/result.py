"""How well a run does on the test images: `result.json` in its folder."""

import json
from pathlib import Path

import torch

from training import checkpoint
from training.config import RunConfig
from training.data.multimnist import PAPERS_PARTNERS
from training.evaluation import Evaluation, evaluate
from training.examples import evaluation_examples
from training.transformed import TransformedSet, evaluate_transformed

FULL_SETS = ("multimnist", "shifted-mnist")


def measure(run: Path, config: RunConfig, root: Path, device: torch.device, full: bool = False) -> str:
    """Evaluate a run's best checkpoint on the test images and write the result into its folder.

    Args:
        run: its folder; gets result.json, or result-full.json.
        config: of the run.
        root: holds one folder per data set.
        device: to evaluate on.
        full: of MultiMNIST 10 million pairs, as many as the paper's, not 10,000; of shifted MNIST affNIST,
            not the affnist-style set.

    Returns:
        What was found, in a line.

    Raises:
        ValueError: `full` of a run on something else.
        MissingDataError: the test images are not here.
    """
    if full and config.data.name not in FULL_SETS:
        raise ValueError(
            f"--full is for runs on {' or '.join(FULL_SETS)}; {run} is one on {config.data.name}"
        )
    best = checkpoint.best_checkpoint(run)
    model, test = checkpoint.load_model(run, best, device), evaluation_examples(config, root).to(device)
    data: TransformedSet = "affnist" if full else "affnist-style"
    transformed = None
    if config.data.name == "shifted-mnist":  # first, as affNIST may not be here
        transformed = evaluate_transformed(model.eval(), config, data, root, device)
    pairs = full and config.data.name == "multimnist"
    found = evaluate(model, test, config.loss, PAPERS_PARTNERS if pairs else 1)
    result = {
        "data": f"{config.data.name} test set, {found.images} images",
        "checkpoint": best.name,
        "error_percent": found.error_percent,
        "errors": found.errors,
        "images": found.images,
        "object_error_percent": found.object_error_percent,
        "classification_loss": found.classification_loss,
        "reconstruction_loss": found.reconstruction_loss,
    }
    if transformed:
        result[f"{data}_error_percent"] = transformed.error_percent
    file = run / ("result-full.json" if full else "result.json")
    checkpoint.write_atomically(file, json.dumps(result, indent=2) + "\n")
    missed = f"; {found.object_error_percent:.2f} % of their objects" if found.objects > found.images else ""
    more = f"; on {data} {_in_words(transformed)}" if transformed else ""
    return f"{best.name}: test error {_in_words(found)}{missed}{more}"


def _in_words(found: Evaluation) -> str:
    return f"{found.error_percent:.2f} % ({found.errors} of {found.images})"
