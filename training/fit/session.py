"""A training session: the run is locked, then it begins or goes on from its newest checkpoint."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from training.config import RunConfig
from training.fit.distributed import ALONE, Processes
from training.fit.loop import Trainer
from training.runs import checkpoint, provenance


@contextmanager
def training_session(
    run: Path,
    config: RunConfig,
    device: torch.device,
    processes: Processes = ALONE,
    start_weights: dict[str, Tensor] | None = None,
    new: bool = False,
) -> Iterator[Trainer]:
    """Begin a run, or go on from its newest checkpoint, while no other process can change it.

    Args:
        run: its folder.
        config: what it is trained with from here on.
        device: where to train.
        processes: that train together; the first takes the lock, the others wait for it.
        start_weights: of another run or a bundle, to begin with.
        new: the folder must hold no checkpoint; by default a run goes on from the one it holds.

    Raises:
        ValueError: another process trains there, a checkpoint is damaged, or there is one in a `new` run.
    """
    with ExitStack() as held:
        if processes.first:
            held.enter_context(checkpoint.locked(run))
        processes.wait_for_all()
        if new:
            checkpoint.refuse_a_run(run)
        trainer = Trainer(run, config, device, _session(device, processes), start_weights, processes)
        if processes.first:
            checkpoint.write_config(run, config)
        yield trainer


def _session(device: torch.device, processes: Processes) -> checkpoint.Progress:
    """Hardware, command and commit, as this session of a run notes them."""
    hardware = provenance.hardware(device)
    return checkpoint.Progress(
        hardware=hardware if processes.count == 1 else f"{processes.count} processes, each on {hardware}",
        command=provenance.command_line(),
        source_commit=provenance.source_commit(),
    )
