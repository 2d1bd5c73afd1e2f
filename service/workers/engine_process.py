"""The engine process: it has the models, and runs them for all workers.

Its batches hold images of all workers, its queues are bounded for the service, and every bundle is in memory
once. With a process for each device, none of that would hold. It opens no port: workers reach it over a Unix
socket, and each gets a table of what is loaded.
"""

import asyncio
import gc
import logging
import os
import pickle
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray

from export.contract.manifest import Role
from service.errors import NotReadyError
from service.inference.memory import use_one_heap
from service.models.loaded_model import LoadedModel
from service.models.local_models import LocalModels, run_models
from service.models.remembered import Remembered
from service.models.repository import Repository
from service.observability.timings import begin_timings
from service.settings import Settings
from service.workers.channel import Channel
from service.workers.heartbeat import beat
from service.workers.place import Place
from service.workers.shared_number import SharedNumber
from service.workers.table import Facts, Table

Floats = NDArray[np.float32]
Call = Callable[..., Awaitable[object]]

# What a worker asks of `Models`; the rest it does with its table.
PASSED_ON = ("names", "index", "graphs", "load", "unload", "set_traffic", "ready", "metrics")

# From Python 3.13 on, a closed server removes its path. The next engine process listens there, too.
KEEPS_ITS_PATH: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}

log = logging.getLogger(__name__)


def run_engine(settings: Settings, place: Place, on_loaded: Callable[[str], None]) -> str:
    """Load models and run them for the workers that connect; returns why that is not possible any more.

    Args:
        settings: of the service.
        place: where the processes meet.
        on_loaded: called with what is loaded, for people, once it is.
    """
    use_one_heap()
    config = uvicorn.Config("", log_config=None)  # which by default ends the logging that has begun
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:  # uvloop where it is
        return runner.run(_serve(settings, place, on_loaded))


async def _serve(settings: Settings, place: Place, on_loaded: Callable[[str], None]) -> str:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    beating = asyncio.create_task(beat(SharedNumber(place.heartbeat)))

    def end(reason: str) -> None:
        if not ended.done():
            ended.set_result(reason)

    def begin(repository: Repository) -> None:
        if repository.failure and not repository.is_taken_down:
            end(str(repository.failure))
            return
        server.publish()
        gc.collect()
        gc.freeze()  # as in a service of one process
        on_loaded(repository.summary())

    async with run_models(settings, begin, end, Remembered(place.remembered)) as models:
        server = EngineServer(models.repository, models, SharedNumber(place.address.generation))
        models.gathered.pids = server.pids
        restarts = [SharedNumber(path) for path in place.restarts]
        models.gathered.process_restarts = lambda: [number.value for number in restarts]
        workers = await loop.create_unix_server(server.accept, sock=place.engine_listener, **KEEPS_ITS_PATH)
        reason = await ended
        workers.close()
        beating.cancel()
        return reason


class EngineServer:
    """Answers the workers. All methods belong to the event loop.

    Args:
        repository: loads and drops versions; tells this when something has changed.
        models: the same, as requests see it.
        generation: of the table; the only writer.
    """

    def __init__(self, repository: Repository, models: LocalModels, generation: SharedNumber) -> None:
        self._repository = repository
        self._generation = generation
        self._workers: set[_Worker] = set()
        self._keys: dict[LoadedModel, int] = {}
        # Workers may still ask for keys of the engine process before this one, which raised the generation.
        self._next_key = count((generation.value << 32) + 1)
        self._table: Table | None = None
        self.calls: dict[str, Call] = {name: getattr(models, name) for name in PASSED_ON}
        self.calls["describe"] = lambda model, manifests: models.describe(model, manifests=manifests)
        self.calls |= {"find": self._find, "run": self._run, "is_answering": self._is_answering}
        self.calls["ping"] = _pong
        repository.on_change = self.publish

    def accept(self) -> Channel:
        """The channel of a worker that connects; of `loop.create_unix_server`."""
        return _Worker(self).channel

    def joined(self, worker: "_Worker") -> None:
        """A worker's connection is open."""
        self._workers.add(worker)
        if self._table:
            worker.show(self._table, self.loaded())

    def left(self, worker: "_Worker") -> None:
        """A worker has closed its connection, or died."""
        self._workers.discard(worker)

    def loaded(self) -> dict[int, LoadedModel]:
        """What is loaded, by key."""
        return {self._keys[one]: one for one in self._repository.loaded()}

    def publish(self) -> None:
        """Tell all workers what serves now, if it is not what they know."""
        loaded = self._repository.loaded()
        self._keys = {one: self._keys.get(one) or next(self._next_key) for one in loaded}
        versions: dict[str, dict[int, Facts]] = {}
        for one in loaded:
            facts = Facts(self._keys[one], one.name, one.version, one.manifest)
            versions.setdefault(one.name, {})[one.version] = facts
        default = self._repository.default()
        traffic = self._repository.traffic
        known = self._table
        is_known = known and (known.default, known.traffic) == (default, traffic)
        if known and is_known and known.keys() == set(self._keys.values()):
            return
        self._generation.value += 1  # from now on no worker answers from an older table
        self._table = Table(self._generation.value, default, versions, traffic)
        for worker in self._workers:
            worker.show(self._table, self.loaded())

    def pids(self) -> list[int]:
        """The processes of the service: the supervisor, this one and the workers."""
        return [os.getppid(), os.getpid(), *(worker.pid for worker in self._workers if worker.pid)]

    def note_named(self, key: int) -> None:
        """A request has named this version, which stays loaded for a while."""
        if model := self.loaded().get(key):
            self._repository.note_named(model.name, model.version)

    async def _find(self, model: str | None, version: int | None) -> None:
        """Load what a request means, or raise why that cannot be; the table has it then."""
        repository = self._repository
        # Not in `Use`: the worker, which has the request, notes how long it waits.
        found = repository.begin_use(model, version) or await repository.load_to_use(model, version)
        try:
            self.publish()
        finally:
            repository.end_use(found)

    async def _run(self, model: LoadedModel, role: Role, *feeds: Floats) -> object:
        self._repository.note_used(model)
        try:
            return await model.run(role, *feeds)
        finally:
            self._repository.end_use(model)

    async def _is_answering(self, model: LoadedModel) -> bool:
        return await model.is_answering()


class _Worker:
    """A worker that is connected: the versions that it may use, and what it waits for."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server
        self._held: dict[int, LoadedModel] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self.pid = 0  # until it says so
        self.channel = Channel(lambda: server.joined(self), self._take, self._close)

    def show(self, table: Table, loaded: dict[int, LoadedModel]) -> None:
        """Send the table; its versions are kept until the worker gives them back."""
        for key in table.keys() - self._held.keys():
            self._held[key] = loaded[key]
            loaded[key].holders += 1
        self.channel.send(("table", table))

    def _take(self, message: tuple[Any, ...]) -> None:
        match message:
            case "call", number, name, arguments:
                self._running[number] = task = asyncio.create_task(self._answer(number, name, arguments))
                # Here and not at its end: one that is cancelled before it begins has none.
                task.add_done_callback(lambda _: self._running.pop(number))
            case "cancel", number if number in self._running:
                self._running[number].cancel()
            case "pid", pid:
                self.pid = pid
            case "named", key:
                self._server.note_named(key)
            case "release", key if key in self._held:
                _give_back(self._held.pop(key))

    async def _answer(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        timings = begin_timings()
        try:
            if name in ("run", "is_answering"):
                arguments = (self._model(arguments[0]), *arguments[1:])
            value = await self._server.calls[name](*arguments)
            self.channel.send(("answer", number, value, timings.parts))
        except Exception as error:  # whatever it is, the worker's request gets it
            self.channel.send(("error", number, _portable(error), timings.parts))

    def _model(self, key: int) -> LoadedModel:
        if key not in self._held:  # it was loaded by the engine process before this one
            raise NotReadyError("the process with the models has been replaced meanwhile; try again")
        return self._held[key]

    def _close(self) -> None:
        self._server.left(self)
        for task in list(self._running.values()):
            task.cancel()
        while self._held:
            _give_back(self._held.popitem()[1])


async def _pong() -> None:
    """A worker wants to know whether this process still answers."""


def _give_back(model: LoadedModel) -> None:
    model.holders -= 1
    model.unused.set()


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same and can be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever keeps it from being sent
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
