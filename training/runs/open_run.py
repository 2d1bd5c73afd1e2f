"""A run's best checkpoint, as evaluation, export and experiments use it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from training.config import RunConfig
from training.data.own_pictures import find_again
from training.models.build import Network, build
from training.runs import checkpoint


@dataclass(frozen=True)
class OpenRun:
    """The checkpoint with a run's lowest validation error, or its newest one.

    Attributes:
        name: of the checkpoint.
        recorded: the configuration that it was trained with.
        config: the same, with the user's own pictures where they lie now.
        progress: at the checkpoint.
        model: with its weights, on the device, in evaluation mode.
    """

    name: str
    recorded: RunConfig
    config: RunConfig
    progress: checkpoint.Progress
    model: Network


def open_run(run: Path, device: torch.device, images: Path | None = None) -> OpenRun:
    """Open a run; a run that is being trained may remove checkpoints meanwhile.

    Args:
        run: its folder.
        device: of the model.
        images: where the user's own pictures lie now; None: where they lay in training.

    Raises:
        FileNotFoundError: the folder is not a run, it has no checkpoint yet, or its pictures are not there.
        ValueError: a file is damaged, or `images` is given for a run on a data set.
    """
    find_again(checkpoint.read_config(run), images, run)  # no run, or no pictures: told before what it lacks
    while True:
        best = checkpoint.best_checkpoint(run)
        try:
            recorded = checkpoint.config_at(run, best)
            progress, model = checkpoint.read_progress(best), build(recorded.model)
            checkpoint.load_weights(model, best)
        except (FileNotFoundError, ValueError):
            if checkpoint.best_checkpoint(run) == best:  # not replaced by a better one
                raise
        else:
            config = find_again(recorded, images, run)
            return OpenRun(best.name, recorded, config, progress, model.to(device).eval())
