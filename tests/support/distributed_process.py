"""What each of the two processes of test_distributed.py does: it trains, and notes how each run has ended."""

import json
import os
import shutil
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_networks import TINY_MATRIX
from tests.training.fit.test_loop import CONFIG, CPU, images
from training.config import Block, CnnConfig, RunConfig
from training.data.batches import make_batches
from training.data.images import hold_out
from training.fit import step
from training.fit.distributed import Processes, together
from training.fit.loop import Limits, Trainer
from training.models.cpu import convolution
from training.runs import checkpoint
from training.runs.checkpoint import Progress

AVERAGED = replace(CONFIG, optimizer=replace(CONFIG.optimizer, ema_decay=0.5))
UNEVEN = replace(CONFIG, optimizer=replace(CONFIG.optimizer, batch_size=5))
MIXING = replace(CONFIG, model=replace(TINY_MATRIX, mixing_proportions=True))
CALIBRATED = replace(AVERAGED, model=replace(TINY_MATRIX, activation_logit_sd=2.0))
FOLLOWING = replace(CALIBRATED, model=replace(CALIBRATED.model, calibration_momentum=0.1))
STOPPED = replace(CONFIG, optimizer=replace(CONFIG.optimizer, stop_at_error_percent=100.0))
CNN = CnnConfig(architecture="cnn", classes=3, hidden=(4,), blocks=(Block(channels=8, kernel=3),))
MIXED = replace(CONFIG, model=CNN)


class Interrupted(Trainer):
    """The second process hears Ctrl-C in its third step, the first one does not."""

    def _step(self, train, per_epoch):
        if not self.processes.first and self.progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return super()._step(train, per_epoch)


class Diverging(Trainer):
    """A weight of the second process is lost before its third step."""

    def _step(self, train, per_epoch):
        if not self.processes.first and self.progress.step == 2:
            with torch.no_grad():
                self.model.conv1.bias[0] = float("nan")
        return super()._step(train, per_epoch)


def fit(
    run: Path, config: RunConfig, processes: Processes, limits: Limits | None = None, kind: type = Trainer
) -> None:
    """Train as test_loop.py does; how it ended is left in a file of this process's own."""
    if processes.first:
        checkpoint.write_config(run, config)
    processes.any_of(False)  # until it is written
    trainer = kind(run, config, CPU, Progress(), processes=processes)
    parts = hold_out(images(), config.data.validation_images, config.seed)
    ended = {"error": ""}
    try:
        ended["finished"] = trainer.fit(
            *(make_batches(config.data, 3, part) for part in parts), limits or Limits()
        )
    except ValueError as error:
        ended["error"] = str(error)
    networks = [trainer.model, *([trainer.average.model] if trainer.average else [])]
    tensors = [tensor for network in networks for tensor in network.state_dict().values()]
    weights = [float(tensor.double().sum()) for tensor in tensors]
    ended |= {"interrupted": trainer.interrupted, "weights": weights, **asdict(trainer.progress)}
    (run / f"process-{processes.rank}.json").write_text(json.dumps(ended))
    processes.any_of(False)  # until both are here


def copy_with_other_numbers(run: Path, copy: Path) -> Path:
    """A run whose newest checkpoint has other weights, averages and moments than this one."""
    shutil.copytree(run, copy)
    for path in checkpoint.newest_checkpoint(copy).glob("*.safetensors"):
        save_file({name: tensor * 1.5 for name, tensor in load_file(path).items()}, path)
    return copy


def main(folder: Path) -> None:
    """Every run that test_distributed.py looks at."""
    # Half a batch would be rounded otherwise than a whole.
    convolution.has_bfloat16_instructions = lambda: False
    with together(CPU) as processes:
        fit(folder / "whole", AVERAGED, processes)
        names = [thread.read_text() for thread in Path("/proc/self/task").glob("*/comm")]
        assert any("gloo" in name for name in names), "test_distributed.py looks for its threads"
        fit(folder / "parts", AVERAGED, processes, Limits(max_minutes=1e-9))
        fit(folder / "parts", AVERAGED, processes)
        fit(folder / "apart", AVERAGED, processes, Limits(max_minutes=1e-9))
        apart = folder / "apart"
        if not processes.first:
            apart = copy_with_other_numbers(apart, folder / "apart-second")
        processes.wait_for_all()  # until it is copied
        fit(apart, AVERAGED, processes)
        fit(folder / "stopped", STOPPED, processes)
        fit(folder / "mixing", MIXING, processes)
        fit(folder / "calibrated", CALIBRATED, processes, Limits(max_minutes=1e-9))
        fit(folder / "calibrated", CALIBRATED, processes)
        fit(folder / "following", FOLLOWING, processes)
        fit(folder / "uneven", UNEVEN, processes)
        with patch.object(step, "has_bfloat16_instructions", lambda: processes.first):
            fit(folder / "mixed", MIXED, processes)
        fit(folder / "interrupted", CONFIG, processes, kind=Interrupted)
        fit(folder / "diverging", CONFIG, processes, kind=Diverging)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
