"""Copies of a run that do not fit together; what becomes of those that do needs two processes."""

from dataclasses import dataclass, field, replace

import pytest

from training.config import load_preset
from training.fit.copies import Copies
from training.fit.distributed import Processes
from training.runs import checkpoint

DRAWN = load_preset("drawn")
ANOTHER = replace(DRAWN, seed=7)


@dataclass(frozen=True)
class Second(Processes):
    """The second of two processes; `firsts` is what the first one has whenever they exchange something."""

    rank: int = 1
    count: int = 2
    firsts: list[object] = field(default_factory=list)

    def of(self, value, rank=0):
        return self.firsts.pop(0) if rank == 0 else value

    def of_all(self, value):
        return [self.firsts.pop(0), value]


def test_a_machine_that_was_given_another_command_is_refused(tmp_path):
    Copies(tmp_path, Second(firsts=[DRAWN])).agree_on(DRAWN)
    with pytest.raises(ValueError, match=r"process 1 was asked for another run .* seed 7 \(0 before\)"):
        Copies(tmp_path, Second(firsts=[DRAWN])).agree_on(ANOTHER)


def test_machines_agree_on_how_often_what_they_start_from_was_measured(tmp_path):
    """It may have been measured on one of them only."""
    once, twice = (replace(DRAWN, started_from={"step": 3, "times_measured": count}) for count in (1, 2))
    for first, own in ((once, twice), (twice, once)):
        assert Copies(tmp_path, Second(firsts=[first])).agree_on(own) == twice


def test_machines_that_hold_different_runs_are_refused_before_anything_is_overwritten(tmp_path):
    checkpoint.checkpoint_at(tmp_path, 3).mkdir(parents=True)
    checkpoint.write_config(tmp_path, ANOTHER)
    newer = checkpoint.checkpoint_at(tmp_path, 5).name
    with pytest.raises(ValueError, match=r"different runs on two machines: seed 7 \(0 before\)"):
        Copies(tmp_path, Second(firsts=[[newer], DRAWN]), several=True).update()
    assert checkpoint.read_config(tmp_path) == ANOTHER
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
        checkpoint.checkpoint_at(tmp_path, 3).name
    ]
