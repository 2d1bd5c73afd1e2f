"""`capsnet-train make toys`: every toy at every viewpoint and lighting, written as smallNORB's files."""

# N stereo pairs, E elevations, L lightings

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from filelock import lock_descriptor
from numpy.typing import NDArray
from tqdm import tqdm

from export.contract.processors import usable_cpus
from training.data.readers.smallnorb import (
    CLASS_NAMES,
    SIZE,
    create_matrix,
    file_name,
    open_matrix,
    write_matrix,
)
from training.data.synthetic.toys.conditions import Conditions, Part
from training.data.synthetic.toys.studio import SEED, Toy, photograph, taken, toy

NAME = "toys"
SPLITS: tuple[Part, ...] = ("train", "test")


@dataclass(frozen=True)
class Sitting:
    """All pictures of a toy at one azimuth; they share the shadows.

    Attributes:
        split: where they belong.
        category: 0 to 4.
        instance: 0 to 9.
        azimuth: 0 to 17.
        subject: the toy.
        conditions: its elevations and lightings.
        rows: where its pairs stand among those of the split, int64 [E, L].
    """

    split: Part
    category: int
    instance: int
    azimuth: int
    subject: Toy
    conditions: Conditions
    rows: NDArray[np.int64]


def make(root: Path, conditions: Conditions | None = None, processes: int | None = None) -> Path:
    """Make the data set; it appears when it is whole, or not at all. To be called in the main thread.

    Args:
        root: holds one folder per data set.
        conditions: what is photographed; all if not given.
        processes: that work at it; one per usable CPU if not given. The files do not depend on it.

    Returns:
        The data set's folder.

    Raises:
        FileExistsError: it is there already.
        ValueError: another process is making it.
        OSError: the disk has no room for it.
        KeyboardInterrupt: SIGINT or SIGTERM came.
    """
    conditions = conditions or Conditions()
    folder = root / NAME
    _refuse_another(folder)
    with _interrupted_by_signals(), _unfinished(root / f"{NAME}.part") as part:
        _refuse_full_disk(root, conditions)
        _fill(part, conditions, processes or usable_cpus())
        _refuse_another(folder)
        part.replace(folder)
    return folder


def _fill(part: Path, conditions: Conditions, processes: int) -> None:
    """Write the three matrices of each split."""
    pictures = [_create(part, conditions, split) for split in SPLITS]
    _render(sittings(conditions), part, processes)
    for matrix in pictures:
        matrix.flush()


def _create(part: Path, conditions: Conditions, split: Part) -> "np.memmap[Any, np.dtype[Any]]":
    """The matrices that say what is on the pictures, and one for these, zero until the sittings fill it."""
    pairs = conditions.pairs(split)
    azimuth_in_tens = np.array([1, 1, 2, 1], np.int32)  # as smallNORB has it: 0, 2, 4 to 34
    write_matrix(part / file_name(NAME, split, "cat"), pairs[:, 0])
    write_matrix(part / file_name(NAME, split, "info"), pairs[:, 1:] * azimuth_in_tens)
    return create_matrix(part / file_name(NAME, split, "dat"), np.dtype("u1"), (len(pairs), 2, SIZE, SIZE))


def _rows(conditions: Conditions, split: Part) -> NDArray[np.int64]:
    """Where each pair stands, by category, toy, elevation, azimuth and lighting; -1 for those not taken."""
    whole = Conditions()
    shape = (len(CLASS_NAMES), 10, len(whole.elevations), len(whole.azimuths), len(whole.lightings))
    rows = np.full(shape, -1)
    pairs = conditions.pairs(split)
    rows[tuple(pairs.T)] = np.arange(len(pairs))
    return rows


def sittings(conditions: Conditions) -> list[Sitting]:
    """All that it takes to fill the matrices, split by split."""
    planned = []
    for split in SPLITS:
        rows = _rows(conditions, split)
        for category, instance in product(range(len(CLASS_NAMES)), conditions.toys(split)):
            subject, of_toy = toy(category, instance), rows[category, instance]
            for azimuth in conditions.azimuths:
                place = np.ix_(conditions.elevations, [azimuth], conditions.lightings)
                pairs = of_toy[place][:, 0]
                planned.append(Sitting(split, category, instance, azimuth, subject, conditions, pairs))
    return planned


def _render(planned: list[Sitting], part: Path, processes: int) -> None:
    """Fill the matrices of pictures, with progress; interrupted, the workers are stopped at once."""
    fresh = multiprocessing.get_context("spawn")  # a fork could inherit a lock that a thread of ours holds
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, fresh, _depend_on_the_parent) as pool:
        try:
            # Not `map`: left early it cancels, and Python 3.11 fails to end a pool of what is canceled.
            waiting = [pool.submit(sit, sitting, part) for sitting in planned]
            for carried_out in tqdm(waiting, NAME, unit=" views", mininterval=1):
                carried_out.result()
        except BaseException:  # the pool would wait for what they are at
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def _depend_on_the_parent() -> None:
    """Leave Ctrl-C to the parent of this worker, and end soon after it: killed, it could not say so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent, "a worker has a parent"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)  # not sys.exit: the main thread waits for work that no one is left to send


def sit(sitting: Sitting, part: Path) -> None:
    """Take the pictures of a sitting, and put them where they belong.

    The process that takes them writes them: stopped while it sends so much to its parent, it would leave that
    waiting for the rest forever.

    Args:
        sitting: one of `sittings`.
        part: folder of the matrices.
    """
    elevations = [30 + 5 * elevation for elevation in sitting.conditions.elevations]
    seen = photograph(sitting.subject, 20 * sitting.azimuth, elevations, sitting.conditions.lightings)
    seed = (SEED, sitting.category, sitting.instance, sitting.azimuth)
    pictures = open_matrix(part / file_name(NAME, sitting.split, "dat"))
    pictures[sitting.rows] = taken(seen, np.random.default_rng(seed))


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt as SIGINT does; what comes after it cannot cut the tidying up short.

    `timeout`, for one, sends its signal twice: to the command and to the group that it is in.
    """

    def interrupt(_: int, __: FrameType | None) -> None:
        for number in previous:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in previous:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _unfinished(part: Path) -> Iterator[Path]:
    """A folder for this process alone that goes away unless it has been renamed by the end."""
    part.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_RDONLY)
    if not lock_descriptor(descriptor, blocking=False):
        os.close(descriptor)
        raise ValueError(f"another process is making {part.with_suffix('')}; wait for it")
    for left_over in part.iterdir():  # by a process that was killed
        left_over.unlink()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(descriptor)


def _refuse_another(folder: Path) -> None:
    if folder.exists():
        raise FileExistsError(f"{folder.resolve()} is there already; to make it again, remove it first")


def _refuse_full_disk(root: Path, conditions: Conditions) -> None:
    """The files are filled through the memory, where a full disk would end the process without a word."""
    pairs = sum(len(conditions.pairs(split)) for split in SPLITS)
    needed, free = pairs * 2 * SIZE * SIZE * 1.05, shutil.disk_usage(root).free
    if free < needed:
        raise OSError(
            f"{root.resolve()} has room for {free / 1e9:.1f} GB; {NAME} takes {needed / 1e9:.1f} GB"
        )
