"""A run's result on the test images, `result.json` in its folder, and how often it was measured.

Measuring often and publishing the best result would select on the test set. So every measurement is recorded
in `measured.jsonl`, and the model card says how many there were.
"""

import json
from pathlib import Path
from typing import Any

import torch

from export.contract.atomic_file import write_atomically
from export.contract.writable import check_writable
from training.config import RunConfig
from training.data.datasets import composed, listed
from training.data.run_images import evaluation_batches
from training.data.transforms.multimnist import PAPERS_PARTNERS
from training.evaluate.evaluation import Evaluation, evaluate
from training.evaluate.transformed import TransformedSet, evaluate_transformed
from training.runs import provenance
from training.runs.open_run import open_run

MEASURED = "measured.jsonl"


def measure(
    run: Path, root: Path, device: torch.device, images: Path | None = None, *, full: bool = False
) -> str:
    """Evaluate a run's best checkpoint on the test images and write the result into its folder.

    Args:
        run: its folder; gets result.json, or result-full.json.
        root: holds one folder per data set.
        device: to evaluate on.
        images: where the user's own pictures lie now; None: where they lay in training.
        full: of MultiMNIST 10 million pairs, as many as the paper's, not 10,000; of shifted MNIST affNIST,
            not the affnist-style set.

    Returns:
        What was found, in a line.

    Raises:
        ValueError: `full` of a run on something else, or `images` of a run on a data set.
        FileNotFoundError: the folder is not a run, it has no checkpoint yet, or its pictures are not there.
        MissingDataError: the test images are not here.
        OSError: the result cannot be written; then nothing is measured.
    """
    best = open_run(run, device, images)
    config = best.config
    composition = config.data.spec.composition
    if full and composition == "single":
        raise ValueError(f"--full is for runs on {listed(composed())}; {run} is a run on {config.data.name}")
    for path in (run, run / MEASURED):
        check_writable(path)
    test = evaluation_batches(config, root).to(device)
    model = best.model
    data: TransformedSet = "affnist" if full else "affnist-style"
    transformed = None
    if composition == "shifted":  # first, as affNIST may not be here
        transformed = evaluate_transformed(model, config, data, root, device)
    pairs = full and composition == "pairs"
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
    note_measurement(run, best.name, found.error_percent)
    write_atomically(file, json.dumps(result, indent=2) + "\n")
    missed = f"; {found.object_error_percent:.2f} % of their objects" if found.objects > found.images else ""
    more = f"; on {data} {_in_words(transformed)}" if transformed else ""
    return f"{best.name}: test error {_in_words(found)}{missed}{more}"


def note_measurement(run: Path, name: str, error_percent: float) -> None:
    """Note that a run's checkpoint of this name has been measured on the test images."""
    row = {"checkpoint": name, "error_percent": error_percent, "command": provenance.command_line()}
    rows = [row] if _times_noted(run) or not _measured_as_it_finished(run) else [{"command": "unknown"}, row]
    with (run / MEASURED).open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)


def times_measured(run: Path, config: RunConfig) -> int:
    """How often a run, or a stage before it, was measured on the test images by `evaluate` or `bundle`.

    Measurements in experiments are not counted.
    """
    of_stages = _times_of_stages(config.started_from)
    return of_stages + (_times_noted(run) or _measured_as_it_finished(run))


def _times_of_stages(origin: dict[str, Any] | None) -> int:
    """How often the stages before a run were measured; a bundle was when it was published.

    Earlier versions did not count: of what they noted, only the bundles are known.
    """
    if origin is None:
        return 0
    times = origin.get("times_measured")
    if times is None:
        times = _times_of_stages(origin["config"].get("started_from"))
    return int(times) + ("bundle" in origin)


def _times_noted(run: Path) -> int:
    noted = run / MEASURED
    return len(noted.read_bytes().splitlines()) if noted.exists() else 0


def _measured_as_it_finished(run: Path) -> bool:
    """Earlier versions measured a run once when it finished, and noted nothing."""
    return (run / "result.json").exists()


def _in_words(found: Evaluation) -> str:
    return f"{found.error_percent:.2f} % ({found.errors} of {found.images})"
