"""CAPSNET_WORKERS processes on one listening socket, one engine process, and the process that watches them.

All workers accept from one socket, which the supervisor opened. With a socket for each (SO_REUSEPORT), the
connections that wait for a killed worker would be reset, as those of gRPC are, which opens its own; here
another worker accepts them. A worker accepts only once the models are loaded, so no client reaches one that
cannot answer yet.
"""

import ctypes
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from service.http.keys import Keys
from service.settings import Settings, SettingsError
from service.stopping import hold_hangups, stop_signals, take_hangups
from service.workers.heartbeat import LOOK_EVERY_S, Pulse
from service.workers.place import SHARED_COUNTS, Place, make_place, own_folder
from service.workers.shared_number import SharedNumber

MAX_FAILED_STARTS = 3  # in a row; then another one would fail, too
END_S = 5.0  # so long after CAPSNET_DEADLINE_MS a worker is killed
MIN_FROZEN_S = 10.0  # with a short CAPSNET_DEADLINE_MS, an engine process is replaced only after this time
PR_SET_PDEATHSIG = 1  # of Linux' prctl

log = logging.getLogger(__name__)


ServeModels = Callable[[Settings, Place, Connection], None]
ServeRequests = Callable[[Settings, Place, Connection, Keys], None]
Say = Callable[[str], None]


def share_of(settings: Settings) -> Settings:
    """The settings of one worker: its share of threads and memory, never less than one request needs."""
    count = settings.worker_count
    one_body = math.ceil(settings.max_body_bytes * 4 / 3)
    share = {
        "decode_threads": max(settings.decode_threads // count, 1),
        "uploads_bytes": max(settings.uploads_bytes // count, one_body),
    }
    return settings.model_copy(update=share)


def begin_child() -> None:
    """Prepare a process that a supervisor has started: it stops when told to, or without its supervisor.

    Signals of the terminal reach the supervisor alone, which then stops one after the other.
    """
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    supervisor = multiprocessing.parent_process()
    if supervisor and os.getppid() != supervisor.pid:  # it died before this one was to hear of it
        os._exit(0)


@dataclass(eq=False)
class _Child:
    """A process, the pipe on which it says that it is ready, and a worker's number."""

    process: SpawnProcess
    channel: Connection
    is_engine: bool
    number: int
    is_ready: bool = False

    @property
    def name(self) -> str:
        return f"{'the engine process' if self.is_engine else 'worker'} {self.process.pid}"


class Supervisor:
    """Starts the processes, replaces those that die, and stops them all at a signal.

    An engine process that has done nothing at all for CAPSNET_DEADLINE_MS is killed, and so replaced: by then
    nothing that it was asked can still be answered in time.

    Args:
        settings: of the service.
        listeners: accept the connections of all workers.
        keys: those that open the service. Workers get them from here: one that is started while a file has a
            mistake has those that are in force.
        serve_models: what the engine process runs; sends what it has loaded, once it has. A function of a
            module, since each process is a new interpreter.
        serve_requests: what a worker runs; sends a line once it accepts connections.
        say: called with what is loaded, once all workers accept connections.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: list[socket.socket],
        keys: Keys,
        *,
        serve_models: ServeModels,
        serve_requests: ServeRequests,
        say: Say,
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._keys = keys
        self._serve_models = serve_models
        self._serve_requests = serve_requests
        self._say = say
        self._spawn = multiprocessing.get_context("spawn")
        self._children: list[_Child] = []
        self._loaded = ""
        self._has_begun = False
        self._failed_starts = 0
        self._is_told_to_stop = False

    def run(self) -> int:
        """Serve until a signal comes; returns the exit status.

        Raises:
            OSError: there is no place where the processes could meet.
        """
        with own_folder() as folder:
            self._place = place = make_place(folder, self._listeners)
            limit_s = max(self._settings.deadline_ms / 1000, MIN_FROZEN_S)
            self._pulse = Pulse(SharedNumber(place.heartbeat), limit_s)
            self._worker_restarts = SharedNumber(place.restarts.workers)
            self._engine_restarts = SharedNumber(place.restarts.engines)
            with place.engine_listener:
                return self._watch()

    def _watch(self) -> int:
        woken, wakes = socket.socketpair()
        with woken, wakes:
            wakes.setblocking(False)
            woken.setblocking(False)
            signal.set_wakeup_fd(wakes.fileno())
            for number in stop_signals():
                signal.signal(number, self._note_signal)
            if self._settings.key_files:
                signal.signal(signal.SIGHUP, self._pass_on)
                take_hangups()
            status = None
            try:
                while status is None and not self._is_told_to_stop:
                    self._start_missing()
                    sentinels = [child.process.sentinel for child in self._children]
                    unready = [child.channel for child in self._children if not child.is_ready]
                    wait([woken, *sentinels, *unready], LOOK_EVERY_S)
                    with suppress(BlockingIOError):
                        woken.recv(4096)  # what signals wrote: they have been handled
                    self._read_lines()
                    self._kill_frozen()
                    status = self._bury()
            finally:
                self._end()
                signal.set_wakeup_fd(-1)
        return status or 0

    def _pass_on(self, number: int, _: object) -> None:
        """All processes read keys again; only workers log whether they could."""
        with suppress(SettingsError):
            self._keys.read()
        for child in self._children:
            if not child.is_engine and child.process.pid:
                with suppress(ProcessLookupError):
                    os.kill(child.process.pid, number)

    def _note_signal(self, number: int, _: object) -> None:
        """Somebody who presses Ctrl-C again waits for nothing."""
        if self._is_told_to_stop and number == signal.SIGINT:
            for child in self._children:
                child.process.kill()
        self._is_told_to_stop = True

    def _start_missing(self) -> None:
        """Start the processes that are not there.

        Once the service has begun, what cannot be started is tried again at the next turn.
        """
        if self._settings.key_files:
            hold_hangups()  # as each process does from its first moment, until it can read keys again
        try:
            if not any(child.is_engine for child in self._children):
                self._start(is_engine=True)
            taken = {child.number for child in self._children if not child.is_engine}
            for number in range(self._settings.worker_count):
                if number not in taken:
                    self._start(is_engine=False, number=number)
        except OSError:  # there is no memory, or no room for a process or a file
            if not self._has_begun:
                raise
            log.exception("a process cannot be started, and is tried again")
        finally:
            if self._settings.key_files:
                take_hangups()

    def _start(self, *, is_engine: bool, number: int = 0) -> None:
        ours, theirs = self._spawn.Pipe()
        if is_engine:
            os.environ.pop(SHARED_COUNTS, None)
        else:  # its library reads this while it is imported
            os.environ[SHARED_COUNTS] = str(self._place.counts)
        place = replace(self._place, worker=number)
        if is_engine:
            process = self._spawn.Process(target=self._serve_models, args=(self._settings, place, theirs))
        else:
            arguments = share_of(self._settings), place, theirs, self._keys
            process = self._spawn.Process(target=self._serve_requests, args=arguments)
        with theirs:
            try:
                process.start()
            except OSError:
                ours.close()
                raise
        self._children.append(_Child(process, ours, is_engine, number))

    def _read_lines(self) -> None:
        """Note the processes that have become ready; what is loaded is said once all are."""
        for child in self._children:
            if child.is_ready or not child.channel.poll():
                continue
            try:
                line = child.channel.recv()
            except (EOFError, ConnectionError):  # it has died
                continue
            child.is_ready = True
            self._failed_starts = 0
            log.info("%s %s", child.name, "has the models" if child.is_engine else "accepts connections")
            if child.is_engine:
                self._loaded = line
        if not self._has_begun and self._children and all(child.is_ready for child in self._children):
            self._has_begun = True
            self._say(self._loaded)

    def _kill_frozen(self) -> None:
        """Kill the engine process if it stands still; one that is still starting may."""
        engine = next((child for child in self._children if child.is_engine), None)
        if self._pulse.is_lost(time.monotonic()) and engine and engine.is_ready and engine.process.is_alive():
            log.error("%s does not answer any more and is killed", engine.name)
            engine.process.kill()

    def _bury(self) -> int | None:
        """Forget the processes that have died; the exit status if another would die, too."""
        for child in [one for one in self._children if not one.process.is_alive()]:
            self._children.remove(child)
            child.channel.close()
            if self._is_told_to_stop:
                continue
            status = child.process.exitcode or 0
            log.error("%s has ended with status %d", child.name, status)
            if not child.is_ready:
                self._failed_starts += 1
                if not self._has_begun or self._failed_starts >= MAX_FAILED_STARTS:
                    log.error("a process cannot start; the service ends")
                    return 1
            log.info("%s is replaced", child.name)
            restarts = self._engine_restarts if child.is_engine else self._worker_restarts
            restarts.value += 1
        return None

    def _end(self) -> None:
        """Stop all: workers that accept connections finish their requests, then the engine process ends."""
        for listener in self._listeners:
            listener.close()
        workers = [child for child in self._children if not child.is_engine]
        for child in workers:
            if child.is_ready:
                child.process.terminate()
            else:
                child.process.kill()
        until = time.monotonic() + self._settings.deadline_ms / 1000 + END_S
        for child in workers:
            _join(child, until)
        for child in self._children:
            if child.is_engine:
                child.process.terminate()
                _join(child, time.monotonic() + END_S)


def _join(child: _Child, until: float) -> None:
    child.process.join(max(until - time.monotonic(), 0))
    if child.process.is_alive():
        log.error("%s did not end in time and is killed", child.name)
        child.process.kill()
        child.process.join()
