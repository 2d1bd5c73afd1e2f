"""The copies of a run's folder on the machines that train it together.

On a shared disk there is one copy; without one, each machine has its own. A copy is locked by its keeper, the
first of the processes that see it. The first process of all writes the log and the checkpoints; after each
checkpoint, and before training starts, the keepers of older copies receive what the newest one has. So a run
goes on from its newest checkpoint as long as one machine still has it.
"""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from training.config import RunConfig
from training.fit.distributed import ALONE, Processes
from training.runs import checkpoint
from training.runs.lock import lock_folder

RECEIVED = ".received.partial"  # folder in a copy that holds what is still arriving


@dataclass(frozen=True)
class Copies:
    """The copies of a run, seen from one process.

    Attributes:
        run: the folder, by the name that it has on this machine.
        processes: that train the run together.
        keeper: whether this process locks and writes the copy that it sees.
        several: whether there is more than one.
    """

    run: Path
    processes: Processes = ALONE
    keeper: bool = True
    several: bool = False

    def update(self) -> None:
        """Give every copy the newest checkpoint, the best one and the log; all processes call it together.

        Raises:
            ValueError: two copies are of different runs.
        """
        if not self.several:
            return
        held = self.processes.of_all([folder.name for folder in checkpoint.checkpoints(self.run)])
        newest = max((names[-1] for names in held if names), default=None)
        if newest is None or all(newest in names for names in held):
            return
        self._refuse_another_run()
        source = next(rank for rank, names in enumerate(held) if newest in names)
        sends = self.processes.rank == source
        wanted = self.processes.of(_best_and_newest(self.run) if sends else [], source)
        missing = [name for name in wanted if not all(name in names for names in held)]
        files = _files(self.run, missing) if sends else []
        stale = self.keeper and newest not in held[self.processes.rank]
        self._send(source, self.processes.of(files, source), receives=stale)
        if stale:
            _put_in_place(self.run, missing)
        self.processes.wait_for_all()  # until every copy is whole

    def agree_on(self, config: RunConfig) -> RunConfig:
        """Refuse to train when another process was asked for something else; all processes call it together.

        Returns:
            The configuration. What it started from may have been measured on one of the machines only: it has
            the highest count of all.

        Raises:
            ValueError: its configuration differs from the first one's.
        """
        configs = self.processes.of_all(config)
        if differing := checkpoint.changes_of(_without_count(configs[0]), _without_count(config)):
            raise ValueError(
                f"process {self.processes.rank} was asked for another run than the first process: "
                f"{differing}; give every machine the same command and the same data"
            )
        return replace(config, started_from=max(configs, key=_count).started_from)

    def _refuse_another_run(self) -> None:
        """Network, data and seed identify a run; its schedule may be changed between two sessions."""
        own = checkpoint.newest_checkpoint(self.run)
        config = checkpoint.read_config(self.run) if own else None
        configs = [each for each in self.processes.of_all(config) if each is not None]
        for other in configs[1:]:
            if differing := checkpoint.changes_of_run(configs[0], other):
                raise ValueError(
                    f"{self.run} holds different runs on two machines: {differing}; "
                    "remove the wrong one, or choose another --out"
                )

    def _send(self, source: int, files: list[str], receives: bool) -> None:
        """Give files of the source's copy to all processes; those that receive them keep them aside."""
        aside = self.run / RECEIVED
        if receives:
            shutil.rmtree(aside, ignore_errors=True)
        for name in files:
            own = (self.run / name).read_bytes() if self.processes.rank == source else b""
            content = self.processes.of(own, source)
            if receives:
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                (aside / name).write_bytes(content)


@contextmanager
def held_copies(run: Path, processes: Processes = ALONE, wait_s: float = 0) -> Iterator[Copies]:
    """Lock every copy of a run and bring them all up to date.

    Args:
        run: the folder, by the name that it has on this machine.
        processes: that train it together.
        wait_s: how long to wait for another process, such as a former worker that is about to end.

    Raises:
        ValueError: another process trains in a copy, or two copies are of different runs.
    """
    if processes.count > 1:
        run.mkdir(parents=True, exist_ok=True)
    keeper = _first_that_sees(run, processes) == processes.rank
    with ExitStack() as held:
        if keeper:
            refusal = f"another process is training in {run}"
            held.enter_context(lock_folder(run, refusal, wait_s))
        several = sum(processes.of_all(keeper)) > 1
        copies = Copies(run, processes, keeper, several)
        copies.update()
        yield copies


def _first_that_sees(run: Path, processes: Processes) -> int:
    """The lowest rank that sees this copy: each leaves a file there that no cache has an answer about."""
    if processes.count == 1:
        return 0
    session = processes.of(secrets.token_hex(8))
    marks = [run / f".seen-{session}-{rank}" for rank in range(processes.count)]
    marks[processes.rank].touch()
    try:
        processes.wait_for_all()
        found = [mark.exists() for mark in marks]
        processes.wait_for_all()  # until all have looked
    finally:
        marks[processes.rank].unlink()
    return found.index(True)


def _best_and_newest(run: Path) -> list[str]:
    """Names of the checkpoints that a run needs, the newest one last."""
    newest = checkpoint.newest_checkpoint(run)
    assert newest is not None
    return list(dict.fromkeys([checkpoint.best_checkpoint(run).name, newest.name]))


def _files(run: Path, checkpoints: list[str]) -> list[str]:
    """What a stale copy receives, by its name in the folder."""
    whole = [path for name in checkpoints for path in sorted((run / "checkpoints" / name).iterdir())]
    several = [run / checkpoint.CONFIG, run / checkpoint.LOG, *whole]
    return [str(path.relative_to(run)) for path in several if path.is_file()]


def _put_in_place(run: Path, checkpoints: list[str]) -> None:
    """The log and the best checkpoint before the newest one, which makes the copy count as up to date."""
    aside = run / RECEIVED
    checkpoint.sync(aside)
    for name in (checkpoint.CONFIG, checkpoint.LOG):
        if (aside / name).exists():
            (aside / name).replace(run / name)
    (run / "checkpoints").mkdir(exist_ok=True)
    for name in checkpoints:
        received, place = aside / "checkpoints" / name, run / "checkpoints" / name
        checkpoint.sync(received)
        if not place.exists():
            received.rename(place)
    checkpoint.sync(run / "checkpoints")
    shutil.rmtree(aside)
    checkpoint.remove_old(run)


def _count(config: RunConfig) -> int:
    """How often what the run started from was measured."""
    return (config.started_from or {}).get("times_measured") or 0


def _without_count(config: RunConfig) -> RunConfig:
    origin = config.started_from
    return config if origin is None else replace(config, started_from=origin | {"times_measured": 0})
