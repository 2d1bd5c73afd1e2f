"""CAPSNET_WORKERS processes on one listening socket, and the process that watches over them.

All workers accept from one socket, which the supervisor opened. With a socket for each (SO_REUSEPORT), the
connections that wait for a killed worker would be reset; here another worker accepts them. A worker accepts
only once it has loaded the default model, so no client reaches one that cannot answer yet.
"""

import ctypes
import logging
import math
import multiprocessing
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from service.inference.providers import usable_cpus
from service.settings import Settings
from service.stopping import stop_signals

MAX_FAILED_STARTS = 3  # in a row; then another one would fail, too
END_S = 5.0  # so long after CAPSNET_DEADLINE_MS a worker is killed
PR_SET_PDEATHSIG = 1  # of Linux' prctl

Work = Callable[[Settings, socket.socket, Connection], None]
Say = Callable[[str], None]

log = logging.getLogger(__name__)


def share_of(settings: Settings) -> Settings:
    """The settings of one worker: its share of threads and limits, never less than one request needs."""
    count = settings.workers
    one_request = max(settings.max_images_per_request, settings.max_reconstructions)
    one_body = math.ceil(settings.max_body_bytes * 4 / 3)
    share = {
        "threads": max((settings.threads or usable_cpus()) // count, 1),
        "decode_threads": max(settings.decode_threads // count, 1),
        "queue_images": max(settings.queue_images // count, one_request),
        "uploads_bytes": max(settings.uploads_bytes // count, one_body),
    }
    return settings.model_copy(update=share)


def end_with_supervisor() -> None:
    """Ask this worker to stop when its supervisor is killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """Starts the workers, replaces those that die, and stops them all at a signal.

    Args:
        settings: of the service.
        listener: accepts the connections of all workers.
        work: what a worker runs; sends one line, what it serves where, once it accepts connections. A
            function of a module, since each worker is a new interpreter.
        say: called with the line of one of them once all accept connections.
    """

    def __init__(self, settings: Settings, listener: socket.socket, work: Work, say: Say) -> None:
        self._settings = settings
        self._listener = listener
        self._work = work
        self._say = say
        self._spawn = multiprocessing.get_context("spawn")
        self._workers: dict[SpawnProcess, Connection] = {}
        self._ready: set[SpawnProcess] = set()
        self._has_begun = False
        self._failed_starts = 0
        self._is_told_to_stop = False

    def run(self) -> int:
        """Serve until a signal comes; returns the exit status."""
        woken, wakes = socket.socketpair()
        with woken, wakes:
            wakes.setblocking(False)
            signal.set_wakeup_fd(wakes.fileno())
            for number in stop_signals():
                signal.signal(number, self._note_signal)
            status = None
            while status is None and not self._is_told_to_stop:
                while len(self._workers) < self._settings.workers:
                    self._start()
                wait([woken, *self._workers.values(), *(one.sentinel for one in self._workers)])
                self._read_lines()
                status = self._bury()
            self._end()
            signal.set_wakeup_fd(-1)
        return status or 0

    def _note_signal(self, *_: object) -> None:
        self._is_told_to_stop = True

    def _start(self) -> None:
        ours, theirs = self._spawn.Pipe(duplex=False)
        arguments = (share_of(self._settings), self._listener, theirs)
        worker = self._spawn.Process(target=self._work, args=arguments)
        worker.start()
        theirs.close()
        self._workers[worker] = ours

    def _read_lines(self) -> None:
        """Note the workers that have become ready; the first line is printed once all are."""
        for worker, channel in self._workers.items():
            if worker in self._ready or not channel.poll():
                continue
            try:
                line = channel.recv()
            except EOFError:  # it has died
                continue
            self._ready.add(worker)
            self._failed_starts = 0
            log.info("worker %d accepts connections", worker.pid)
            if len(self._ready) == self._settings.workers and not self._has_begun:
                self._has_begun = True
                self._say(line)

    def _bury(self) -> int | None:
        """Forget the workers that have died; the exit status if another would die, too."""
        for worker in [one for one in self._workers if not one.is_alive()]:
            self._workers.pop(worker).close()
            if self._is_told_to_stop:
                continue
            status = worker.exitcode or 0
            log.error("worker %d has ended with status %d and is replaced", worker.pid, status)
            if worker not in self._ready:
                self._failed_starts += 1
                if not self._has_begun or self._failed_starts >= MAX_FAILED_STARTS:
                    log.error("a worker cannot start; the service ends")
                    return status if status > 0 else 1
            self._ready.discard(worker)
        return None

    def _end(self) -> None:
        """Stop all; those that accept connections finish their requests first."""
        self._listener.close()
        for worker in self._workers:
            if worker in self._ready:
                worker.terminate()
            else:
                worker.kill()
        until = time.monotonic() + self._settings.deadline_ms / 1000 + END_S
        for worker in self._workers:
            worker.join(max(until - time.monotonic(), 0))
            if worker.is_alive():
                log.error("worker %d did not end in time and is killed", worker.pid)
                worker.kill()
                worker.join()
