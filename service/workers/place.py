"""Where the processes of one service meet."""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import lock_descriptor

from service.http.key_use import SHARED_BYTES
from service.workers.shared_number import SharedNumber

SHARED_COUNTS = "PROMETHEUS_MULTIPROC_DIR"  # the variable of service.observability.request_metrics
SHARED_MEMORY = Path("/dev/shm")
NEEDED_BYTES = 16 * 2**20  # free in memory; mostly for the workers' metrics
PREFIX = "capsnet-serve-"  # of folders
NEW_S = 60.0  # a folder that is younger may not be locked yet


class EngineAddress(NamedTuple):
    """Where workers find the engine process.

    Attributes:
        socket: its Unix socket.
        generation: the file of the table's generation.
    """

    socket: Path
    generation: Path


class Restarts(NamedTuple):
    """Files of numbers: how many workers, and how many engine processes, have died and were replaced."""

    workers: Path
    engines: Path


@dataclass(frozen=True)
class Place:
    """What all processes of a service know.

    Attributes:
        listeners: accept the connections of all workers.
        engine_listener: the engine process accepts workers there; open as long as the service, so that they
            can connect to the next engine process.
        address: of the engine process.
        heartbeat: the file in which the engine process counts, see `service.workers.heartbeat`.
        counts: folder of the workers' metrics.
        key_use: the file in which workers count what each key has sent.
        restarts: the files in which the supervisor counts the processes that it has replaced.
        remembered: the file of what an engine process tells the next one, see `service.models.remembered`.
        worker: the number of the worker that this is for, from 0.
    """

    listeners: list[socket.socket]
    engine_listener: socket.socket
    address: EngineAddress
    heartbeat: Path
    counts: Path
    key_use: Path
    restarts: Restarts
    remembered: Path
    worker: int = 0


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that only this user may enter: in memory, where the system has files there.

    On a disk that becomes full, a process is killed when it writes to memory that is mapped to a file
    (SIGBUS). And what is old among temporary files is removed on some machines. A service locks its folder as
    long as it runs; the folders that killed ones have left are removed first.
    """
    beside = _shared_memory() or Path(tempfile.gettempdir())
    _remove_left(beside)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=beside) as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            lock_descriptor(descriptor, blocking=False)
            yield Path(folder)
        finally:
            os.close(descriptor)


def _remove_left(beside: Path) -> None:
    """Remove this user's folders that no service has locked."""
    for left in beside.glob(f"{PREFIX}*"):
        with suppress(OSError):
            known = left.lstat()
            if known.st_uid != os.getuid() or time.time() - known.st_mtime < NEW_S:
                continue
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if lock_descriptor(descriptor, blocking=False):
                    shutil.rmtree(left)
            finally:
                os.close(descriptor)


def _shared_memory() -> Path | None:
    try:
        space = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    has_room = space.f_bavail * space.f_frsize >= NEEDED_BYTES
    return SHARED_MEMORY if has_room and os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None


def make_place(folder: Path, listeners: list[socket.socket]) -> Place:
    """The sockets and files of a service.

    Args:
        folder: of `own_folder`.
        listeners: accept the connections of all workers.

    Raises:
        OSError: they cannot be made; says where, and what may help.
    """
    address = EngineAddress(folder / "engine.sock", folder / "generation")
    heartbeat = folder / "heartbeat"
    for number in (address.generation, heartbeat):
        SharedNumber.make(number)
    engine_listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        engine_listener.bind(str(address.socket))
    except OSError as error:  # of a path that is too long, it names none
        engine_listener.close()
        raise OSError(f"no socket in {folder}: {error}; TMPDIR may name another folder") from None
    engine_listener.listen(128)
    counts = folder / "counts"
    counts.mkdir()
    key_use = folder / "key_use"
    key_use.write_bytes(bytes(SHARED_BYTES))
    restarts = Restarts(folder / "worker_restarts", folder / "engine_restarts")
    for path in restarts:
        SharedNumber.make(path)
    remembered = folder / "remembered.json"
    return Place(listeners, engine_listener, address, heartbeat, counts, key_use, restarts, remembered)
