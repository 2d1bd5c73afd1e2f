"""Variants are timed as a service runs them, and as long as it takes to say which one is the fastest."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from export.optimize.measure import MAX_BLOCKS, MIN_BLOCKS, MIN_RUNS, measure, undecided
from export.optimize.plan import MAX_WAITED

tells_waiting = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the system does not tell how long threads wait"
)


class Recorder:
    """Has the methods of a session used here; notes who runs how many images in which thread."""

    def __init__(
        self, name: str, noted: list[tuple[str, int, int]], work: Callable[[], object] = int
    ) -> None:
        self.name, self.noted, self.work = name, noted, work

    def get_inputs(self) -> list["Recorder"]:
        return [self]

    @property
    def shape(self) -> list[object]:
        return ["batch", 2, 3, 1]

    def run(self, _: None, feeds: dict[str, np.ndarray]) -> None:
        self.noted.append((self.name, len(feeds["pixels"]), threading.get_ident()))
        self.work()


def recorded(sizes: list[int], **how: object) -> list[tuple[str, int, int]]:
    noted: list[tuple[str, int, int]] = []
    sessions = {name: Recorder(name, noted) for name in ("plain", "toom_cook_1d")}
    times = measure(sessions, sizes, between=lambda: noted.append(("decoder", 1, 0)), **how)
    assert {variant: sorted(found) for variant, found in times.milliseconds.items()} == dict.fromkeys(
        sessions, sizes
    )
    return noted


def test_each_variant_runs_many_times_in_a_row_and_the_variants_take_turns():
    names = [name for name, _, _ in recorded([1]) if name != "decoder"]
    blocks = [(name, len(list(runs))) for name, runs in groupby(names)]
    assert {blocks[0][0], blocks[1][0]} == {"plain", "toom_cook_1d"}
    assert all(runs > MIN_RUNS for _, runs in blocks)
    for variant in ("plain", "toom_cook_1d"):
        assert sum(name == variant for name, _ in blocks) >= MIN_BLOCKS


def test_between_two_blocks_the_decoder_runs():
    names = [name for name, _ in groupby(name for name, _, _ in recorded([1]))]
    assert set(names[::2]) == {"decoder"}


def test_where_a_service_runs_two_batches_side_by_side_another_thread_runs_the_same():
    by_thread: dict[int, set[tuple[str, int]]] = {}
    for name, images, thread in recorded([3], parallel=2):
        by_thread.setdefault(thread, set()).add((name, images))
    mine = by_thread.pop(threading.get_ident())
    by_thread.pop(0)  # the decoder
    assert mine == {("plain", 3), ("toom_cook_1d", 3)}
    assert set.union(*by_thread.values()) == mine


def test_every_variant_gets_some_blocks():
    assert undecided({"plain": [], "toom_cook_1d": []}) == ["plain", "toom_cook_1d"]
    assert undecided({"plain": [1.0, 1.0], "toom_cook_1d": [2.0, 2.0]}, is_late=True) == [
        "plain",
        "toom_cook_1d",
    ]


def test_a_variant_that_is_far_slower_gets_no_second_block():
    assert undecided({"plain": [1.0], "toom_cook_1d": [1.2], "toom_cook_2d": [3.0]}) == [
        "plain",
        "toom_cook_1d",
    ]
    assert undecided({"plain": [1.0], "toom_cook_2d": [3.0]}) == []


def test_it_is_over_once_one_is_clearly_the_fastest():
    assert (
        undecided({"plain": [1.0, 1.0, 3.0], "toom_cook_1d": [1.2, 1.2, 1.2], "toom_cook_2d": [5, 6, 7]})
        == []
    )


def test_two_that_are_close_get_more_blocks_and_no_others_do():
    close = {"plain": [1.00, 1.01, 1.02], "toom_cook_1d": [1.04, 1.05, 1.06], "toom_cook_2d": [5.0, 5.0, 5.0]}
    assert undecided(close) == ["plain", "toom_cook_1d"]


def test_a_time_that_came_only_once_is_not_trusted():
    """As beside a process that takes a core now and then."""
    assert undecided({"plain": [1.0, 1.9, 1.8], "toom_cook_1d": [1.3, 1.3, 1.3]}) == ["plain", "toom_cook_1d"]


@pytest.mark.parametrize(("blocks", "is_late"), [(MAX_BLOCKS, False), (MIN_BLOCKS, True)])
def test_two_that_stay_close_are_measured_no_longer_than_that(blocks, is_late):
    assert undecided({"plain": [1.0] * blocks, "toom_cook_1d": [1.0] * blocks}, is_late=is_late) == []


@contextmanager
def shared_core() -> Iterator[None]:
    """This thread has to share a core with a process that is always busy."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, cores)


@tells_waiting
def test_it_is_told_that_something_else_took_the_core():
    session = Recorder("plain", [], work=lambda: sum(range(10_000)))
    with shared_core():
        times = measure({"plain": session, "toom_cook_1d": session}, [1])
    assert times.waited > MAX_WAITED
