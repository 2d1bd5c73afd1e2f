"""A training session: the run is locked, then it begins or goes on from its newest checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from training.config import RunConfig
from training.fit.copies import Copies, held_copies
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
    copies: Copies | None = None,
) -> Iterator[Trainer]:
    """Begin a run, or go on from its newest checkpoint, while no other process can change it.

    Args:
        run: its folder.
        config: what it is trained with from here on.
        device: where to train.
        processes: that train together.
        start_weights: of another run or a bundle, to begin with.
        new: the folder must hold no checkpoint; by default a run goes on from the one it holds.
        copies: of the run, held by these processes already; None: they are held here.

    Raises:
        ValueError: another process trains there, a checkpoint is damaged, or there is one in a `new` run.
    """
    with held_copies(run, processes) if copies is None else nullcontext(copies) as held:
        if new:
            checkpoint.refuse_a_run(run)
        session = _session(device, config, processes)
        trainer = Trainer(run, config, device, session, start_weights, processes, held)
        if held.keeper:
            checkpoint.write_config(run, config)
        yield trainer


def _session(device: torch.device, config: RunConfig, processes: Processes) -> checkpoint.Progress:
    """Hardware, command and commit, as this session of a run notes them."""
    hardware, there = provenance.hardware(device, config), provenance.machines()
    several = f"{processes.count} processes" + (f" on {there} machines" if there > 1 else "")
    return checkpoint.Progress(
        hardware=hardware if processes.count == 1 else f"{several}, each on {hardware}",
        command=provenance.command_line(),
        source_commit=provenance.source_commit(),
    )
