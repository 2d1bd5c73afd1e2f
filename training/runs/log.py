"""What a run tells while it trains: `log.jsonl` and TensorBoard, in step with each other."""

import json
import logging
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from export.contract.atomic_file import write_atomically
from training.runs.checkpoint import LOG, Progress

logger = logging.getLogger(__name__)


class Log:
    """Rows of a run, each written as it comes; without a folder they are not kept."""

    def __init__(self, run: Path | None, step: int):
        """Open both, and forget what a killed session logged beyond the checkpoint that the run goes on from.

        Args:
            run: the run's folder; None in a process that leaves the log to another.
            step: of that checkpoint.
        """
        self._kept = run is not None
        if run is not None:
            _drop_rows_after(run / LOG, step)
            self._file = (run / LOG).open("a")
            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept:
            self._file.close()
            self._board.close()

    def write(self, progress: Progress, kind: str, **values: float) -> None:
        """Add a row of a kind: `train`, `validation`, or `routing` with matrix capsules' activations."""
        if not self._kept:
            return
        row = {"kind": kind, "step": progress.step, "epoch": round(progress.epochs, 4)}
        row |= {"train_seconds": round(progress.train_seconds, 1), **values}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(f"{kind}/{name}", value, progress.step)


def _drop_rows_after(path: Path, step: int) -> None:
    """Rewrite the log without these, and without rows that are damaged, as losing power can leave them."""
    if path.exists():
        rows = path.read_text(errors="replace").splitlines(keepends=True)
        steps = [_step_of(row) for row in rows]
        if damaged := steps.count(None):
            logger.warning("%s: damaged rows dropped: %d", path, damaged)
        kept = [row for row, of_row in zip(rows, steps, strict=True) if of_row is not None and of_row <= step]
        write_atomically(path, "".join(kept))


def _step_of(row: str) -> int | None:
    """The step that a row is of; None if it is damaged or was cut short."""
    try:
        step = json.loads(row)["step"] if row.endswith("\n") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) else None
