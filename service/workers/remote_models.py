"""The models of a worker: they are in the engine process, and the worker knows them from its table."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from time import monotonic
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from export.contract.manifest import Role
from service.errors import NotReadyError, Unfinished
from service.inference.memory import trim_heap
from service.models.background import release_after_work
from service.models.index_entry import IndexEntry
from service.models.interface import LoadedGraph, Models, ServedModel, Serving
from service.models.traffic import Traffic
from service.models.use import Use
from service.observability.timings import end_part, timings_of_request
from service.workers.channel import Channel
from service.workers.place import EngineAddress
from service.workers.shared_number import SharedNumber
from service.workers.table import Facts, Table

RETRY_S = 0.1  # between two tries to connect
ANSWER_S = 3.0  # so long the engine process, which knows the answer at once, may take for it
NAMED_EVERY_S = 1.0  # so often, at most, the engine process is told that a version was named

Floats = NDArray[np.float32]
T = TypeVar("T")

log = logging.getLogger(__name__)


class RemoteModels(Models):
    """What the engine process has loaded. All methods belong to the event loop, which also runs `run`.

    Where the engine process has died, requests get 503 until the next one has loaded its models. They get it
    as well where it is there and does not answer: a run of a model keeps the request's own deadline, all else
    has ANSWER_S, and as long as the engine process answers others where it may load a model.

    Args:
        address: of the engine process.

    Attributes:
        work_done: requests that have used a model so far.
    """

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        self._generation = SharedNumber(address.generation)
        self._channel: Channel | None = None
        self._is_closed = asyncio.Event()
        self._table: Table | None = None
        self._is_current = asyncio.Event()  # set by each table
        self._models: dict[int, _RemoteModel] = {}
        self._users: Counter[int] = Counter()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
        self.work_done = 0

    async def run(self) -> None:
        """Keep the connection to the engine process, whichever it is. Never ends."""
        loop = asyncio.get_running_loop()
        while True:
            self._is_closed.clear()
            try:
                _, channel = await loop.create_unix_connection(
                    lambda: Channel(lambda: None, self._take, self._is_closed.set), str(self._address.socket)
                )
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            self._channel = channel
            channel.send(("pid", os.getpid()))
            try:
                await self._is_closed.wait()
            finally:
                channel.close()
            log.warning("the engine process has ended; requests get 503 until there is another one")
            self._forget()

    async def first_table(self) -> None:
        """Wait until the engine process says what it has loaded."""
        while self._table is None:
            self._is_current.clear()
            await self._is_current.wait()

    @override
    def use(self, model: str | None, version: int | None) -> AbstractAsyncContextManager[ServedModel]:
        return Use(self, model, version)

    @override
    async def names(self) -> list[str]:
        return cast(list[str], await self._ask("names"))

    @override
    async def index(self) -> list[IndexEntry]:
        return cast(list[IndexEntry], await self._ask("index"))

    @override
    async def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        return cast(dict[str, Any], await self._ask("describe", model, manifests))

    @override
    async def graphs(self) -> list[LoadedGraph]:
        return cast(list[LoadedGraph], await self._ask("graphs"))

    @override
    async def load(self, model: str) -> None:
        await self._have_done("load", model)

    @override
    async def unload(self, model: str) -> None:
        await self._have_done("unload", model)

    @override
    async def set_traffic(self, model: str, rule: Traffic | None) -> None:
        await self._have_done("set_traffic", model, rule)

    @override
    async def ready(self) -> list[Serving]:
        return cast(list[Serving], await self._ask("ready"))

    @override
    async def check_alive(self) -> None:
        """This process can. An engine process of which an inference thread died ends, and is replaced."""

    @override
    async def metrics(self) -> bytes:
        return cast(bytes, await self._ask("metrics"))

    async def is_answering(self, key: int) -> bool:
        """Whether the inference threads of a version answer."""
        return cast(bool, await self._ask("is_answering", key))

    def begin_use(self, model: str | None, version: int | None) -> "_RemoteModel | None":
        """The model of a request, kept loaded until `end_use`; None if it may have to be loaded first."""
        if self._table is None or self._is_old(self._table):
            return None
        return self._begin_use(self._table, model, version)

    async def load_to_use(self, model: str | None, version: int | None) -> "_RemoteModel":
        """The same, loaded first if it has to be; raises what `use` raises."""
        served = self._begin_use(await self._current(), model, version)
        if served is None:
            await self._have_done("find", model, version)  # raises why there is none, else the table has it
            served = self._begin_use(await self._current(), model, version)
        if served is None:
            raise NotReadyError("the versions that serve are changing; try again")
        return served

    def end_use(self, model: "_RemoteModel") -> None:
        """A request needs the model no more."""
        self._users[model.key] -= 1
        self.work_done += 1
        self._release_unused({model.key})

    async def call(self, name: str, *arguments: object) -> object:
        """Ask the engine process, which stops working on the answer when this is cancelled. Has no deadline.

        Raises:
            NotReadyError: it is not there, or died meanwhile.
            Exception: whatever it raised.
        """
        if self._channel is None or self._table is None:  # connected, but it may not have begun
            raise _no_engine()
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self._channel.send(("call", number, name, arguments))
            value, error, parts = await answer
        except asyncio.CancelledError:
            if self._channel:  # it may have died just now
                self._channel.send(("cancel", number))
            raise
        finally:
            self._waiting.pop(number, None)
        if parts and (timings := timings_of_request()):
            timings.add(*parts)  # all processes of a machine have the same monotonic clock
        if error:
            raise error
        return cast(object, value)

    async def _ask(self, name: str, *arguments: object) -> object:
        """What the engine process knows without loading or running anything.

        Raises:
            NotReadyError: it is not there, or does not answer.
            Exception: whatever it raised.
        """
        return await _in_time(self.call(name, *arguments))

    async def _have_done(self, name: str, *arguments: object) -> object:
        """Let the engine process do what may take long, while it answers at all; raises what `_ask` does."""
        doing = asyncio.create_task(self.call(name, *arguments))
        try:
            while not (await asyncio.wait([doing], timeout=ANSWER_S))[0]:
                await self._ask("ping")
            return doing.result()
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    def _begin_use(self, table: Table, model: str | None, version: int | None) -> "_RemoteModel | None":
        found = table.find(model, version)
        if found is None:
            return None
        served = self._models[found.key]
        self._users[found.key] += 1
        if version is not None:
            self._note_named(served)
        return served

    def _is_old(self, table: Table) -> bool:
        """Whether a client may have had an answer from a newer one."""
        return table.generation < self._generation.value

    async def _current(self) -> Table:
        """The table, not older than any that a client has had an answer from."""
        if self._table is None or self._is_old(self._table):
            return await _in_time(self._newest())
        return self._table

    async def _newest(self) -> Table:
        while self._table is None or self._is_old(self._table):
            if self._table is None:
                raise _no_engine()
            self._is_current.clear()
            await self._is_current.wait()
        return self._table

    def _take(self, message: tuple[Any, ...]) -> None:
        match message:
            case "answer", number, value, parts if number in self._waiting:
                _settle(self._waiting[number], value, None, parts)
            case "error", number, error, parts if number in self._waiting:
                _settle(self._waiting[number], None, error, parts)
            case "table", table:
                self._use_table(table)

    def _use_table(self, table: Table) -> None:
        self._table = table
        for versions in table.versions.values():
            for facts in versions.values():
                self._models.setdefault(facts.key, _RemoteModel(self, facts))
        self._is_current.set()
        self._release_unused(self._models.keys() - table.keys())

    def _release_unused(self, keys: set[int]) -> None:
        """Give back the versions of these that no table has and no request uses."""
        kept = self._table.keys() if self._table else set[int]()
        for key in keys - kept:
            if self._users[key] <= 0:
                del self._users[key]
                if self._models.pop(key, None) and self._channel:
                    self._channel.send(("release", key))

    def _note_named(self, model: "_RemoteModel") -> None:
        if self._channel and monotonic() - model.last_named_s > NAMED_EVERY_S:
            model.last_named_s = monotonic()
            self._channel.send(("named", model.key))

    def _forget(self) -> None:
        """The engine process is gone, and with it whatever was asked of it."""
        self._channel = self._table = None
        self._models.clear()
        self._users.clear()
        self._is_current.set()
        for answer in self._waiting.values():
            _settle(answer, None, _no_engine(), ())


@asynccontextmanager
async def reach_models(address: EngineAddress) -> AsyncIterator[RemoteModels]:
    """The models of an engine process, once it has loaded them."""
    models = RemoteModels(address)
    trimming = release_after_work(lambda: models.work_done, trim_heap)
    tasks = [asyncio.create_task(models.run()), asyncio.create_task(trimming)]
    try:
        await models.first_table()
        yield models
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _RemoteModel(ServedModel):
    """A version that the engine process has loaded."""

    def __init__(self, models: RemoteModels, facts: Facts) -> None:
        self.key, self.name, self.version, self.manifest = facts
        self.last_named_s = 0.0
        self._models = models

    @override
    async def run(self, role: Role, *feeds: Floats) -> tuple[Floats, ...]:
        try:
            return cast(tuple[Floats, ...], await self._models.call("run", self.key, role, *feeds))
        except asyncio.CancelledError:
            end_part("queue")  # its own parts would come later
            why = f"{self.name}/{self.version} was computing, or images wait for it"
            raise asyncio.CancelledError(Unfinished(why)) from None

    @override
    async def is_answering(self) -> bool:
        return await self._models.is_answering(self.key)


async def _in_time(answering: Awaitable[T]) -> T:
    """What comes within ANSWER_S.

    Raises:
        NotReadyError: nothing does.
    """
    try:
        async with asyncio.timeout(ANSWER_S) as deadline:
            return await answering
    except TimeoutError:
        if not deadline.expired():
            raise
        raise NotReadyError("the process with the models does not answer; try again") from None


def _settle(answer: asyncio.Future[Any], *outcome: object) -> None:
    if not answer.done():  # whoever waited may have been cancelled just now
        answer.set_result(outcome)


def _no_engine() -> NotReadyError:
    return NotReadyError("the process with the models is starting; try again")
