"""What a worker knows of the models in the engine process: both ends here, in one event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from pickle import PicklingError
from typing import Any

import numpy as np
import pytest

from service.app import create_app
from service.errors import NotReadyError, OverloadedError, Unfinished, UnknownModelError
from service.models.local_models import LocalModels
from service.models.remembered import Remembered
from service.models.repository import Repository
from service.observability.metrics import Metrics
from service.observability.timings import begin_timings
from service.workers.channel import Channel
from service.workers.engine_process import EngineServer, _portable
from service.workers.place import EngineAddress
from service.workers.remote_models import RemoteModels
from service.workers.shared_number import SharedNumber
from tests.support.live_service import settings_for
from tests.support.repositories import run
from tests.support.tiny_bundle import write_bundle

PIXELS = np.full((2, 28, 28, 1), 0.5, np.float32)


class Engine:
    """An engine process, but for the process."""

    def __init__(self, folder: Path) -> None:
        self.address = EngineAddress(folder / "socket", folder / "generation")
        SharedNumber.make(self.address.generation)
        self.models = folder / "models"
        self._remembered = folder / "remembered.json"

    @asynccontextmanager
    async def serving(self, **settings: object) -> AsyncIterator[tuple[EngineServer, Repository]]:
        gathered, self.remembered = Metrics(), Remembered(self._remembered)
        repository = Repository(settings_for(self.models, **settings), gathered, self.remembered)
        server = EngineServer(
            repository, LocalModels(repository, gathered), SharedNumber(self.address.generation)
        )
        self.address.socket.unlink(missing_ok=True)
        listener = await asyncio.get_running_loop().create_unix_server(server.accept, self.address.socket)
        try:
            await repository.first_scan()
            yield server, repository
        finally:
            listener.close()
            for worker in list(server._workers):
                worker.channel.close()
            await repository.close()

    @asynccontextmanager
    async def worker_of_two(self) -> AsyncIterator[RemoteModels]:
        """A worker that may begin before the engine process and outlive it."""
        models = RemoteModels(self.address)
        keeping = asyncio.create_task(models.run())
        try:
            yield models
        finally:
            keeping.cancel()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[RemoteModels]:
        async with self.worker_of_two() as models:
            async with asyncio.timeout(30):
                await models.first_table()
            yield models


@pytest.fixture
def engine(tmp_path) -> Engine:
    (tmp_path / "models").mkdir()
    write_bundle(tmp_path / "models" / "tiny" / "1")
    return Engine(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_what_has_not_begun_to_answer_is_starting_and_nobody_waits_for_it(engine):
    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(engine.address.socket))
            listener.listen()  # as the supervisor's, while there is no engine process
            async with engine.worker_of_two() as models:
                await until(lambda: models._channel is not None)
                with pytest.raises(NotReadyError, match="is starting"):
                    await models.ready()

    run(scenario())


def test_answers_are_those_of_the_engine_process(engine):
    async def scenario() -> None:
        async with engine.serving() as (_, repository), engine.worker() as models:
            async with repository.use("tiny", None) as there, models.use(None, None) as here:
                assert (here.full_name, here.digest) == (there.full_name, there.digest)
                for far, near in zip(await here.encode(PIXELS), await there.encode(PIXELS), strict=True):
                    np.testing.assert_array_equal(far, near)
                poses = (await there.encode(PIXELS))[1]
                np.testing.assert_array_equal(
                    await here.decode_classes(poses, np.array([0, 1])),
                    await there.decode_classes(poses, np.array([0, 1])),
                )
                assert await here.is_answering()
            assert await models.names() == ["tiny"]
            assert await models.index() == repository.index()
            assert await models.describe("tiny", manifests=True) == repository.describe(
                "tiny", manifests=True
            )
            assert [one.full_name for one in await models.ready()] == ["tiny/1"]

    run(scenario())


def test_errors_come_as_they_are(engine):
    async def scenario() -> None:
        async with engine.serving(), engine.worker() as models:
            with pytest.raises(UnknownModelError, match="no model 'nothing'"):
                async with models.use("nothing", None):
                    pass
            with pytest.raises(UnknownModelError, match="tiny has no loaded version 7"):
                async with models.use("tiny", 7):
                    pass

    run(scenario())


def test_what_cannot_be_sent_leaves_nothing_that_waits(engine):
    async def scenario() -> None:
        async with engine.serving(), engine.worker() as models:
            for _ in range(2):
                with pytest.raises((AttributeError, PicklingError), match="pickle"):
                    await models.call("run", lambda: None)
            assert not models._waiting

    run(scenario())


def test_a_worker_without_the_newest_table_waits_for_it(engine, tmp_path):
    async def scenario() -> None:
        async with (
            engine.serving(versions_kept=1) as (_, repository),
            engine.worker() as slow,
            engine.worker() as quick,
        ):
            late: list[Any] = []
            really, slow._use_table = slow._use_table, late.append
            write_bundle(tmp_path / "models" / "tiny" / "2")
            await repository.scan()
            async with quick.use(None, None) as served:
                assert served.version == 2  # a client has seen it
            asking = asyncio.create_task(slow.load_to_use(None, None))
            await until(lambda: bool(late))
            await asyncio.sleep(0.05)
            assert not asking.done()
            really(late.pop())
            assert (await asking).version == 2

    run(scenario())


def test_a_version_stays_loaded_while_a_request_of_a_worker_needs_it(engine, tmp_path):
    async def scenario() -> None:
        async with engine.serving(versions_kept=1) as (_, repository), engine.worker() as models:
            async with models.use(None, None) as old:
                [there] = repository.loaded()
                write_bundle(tmp_path / "models" / "tiny" / "2")
                await repository.scan()
                async with models.use(None, None) as new:
                    assert (old.version, new.version) == (1, 2)
                await asyncio.sleep(0.05)
                assert there.holders == 1
                await old.encode(PIXELS)
            await until(lambda: not repository._retiring)  # drained and closed
            assert there.holders == 0

    run(scenario())


def test_a_worker_that_is_gone_holds_nothing(engine):
    async def scenario() -> None:
        async with engine.serving(versions_kept=1) as (_, repository):
            async with engine.worker() as models:
                await models.load_to_use(None, None)
                [there] = repository.loaded()
                assert there.holders == 1
            await until(lambda: there.holders == 0)

    run(scenario())


def test_a_request_that_is_given_up_is_given_up_there(engine):
    async def scenario() -> None:
        async with engine.serving() as (_, repository), engine.worker() as models:
            served = await models.load_to_use(None, None)
            timings = begin_timings()
            with pytest.raises(Exception, match="dimensions"):
                await served.encode(np.zeros((1, 5, 5, 1), np.float32))
            assert [part.name for part in timings.parts] == ["queue", "compute"]
            timings.parts.clear()
            [there] = repository.loaded()
            there.batcher.submit = lambda *_: asyncio.sleep(3600)  # a graph that takes an hour
            asking = asyncio.create_task(served.encode(PIXELS))
            await until(lambda: there.users == 1)
            asking.cancel()
            await until(lambda: there.users == 0)
            try:
                await asking
            except asyncio.CancelledError as cancelled:
                [told] = cancelled.args
            assert isinstance(told, Unfinished)
            assert told == "tiny/1 was computing, or images wait for it"
            assert [part.name for part in timings.parts] == ["queue"]

    run(scenario())


def test_a_version_that_requests_name_stays_loaded(engine, tmp_path):
    async def scenario() -> None:
        async with engine.serving(versions_kept=1) as (_, repository), engine.worker() as models:
            async with models.use("tiny", 1):
                pass
            await until(lambda: engine.remembered.is_named("tiny", 1))
            write_bundle(tmp_path / "models" / "tiny" / "2")
            await repository.scan()
            async with models.use("tiny", 1) as old, models.use(None, None) as new:
                assert (old.version, new.version) == (1, 2)

    run(scenario())


def test_with_another_engine_process_what_the_one_before_had_is_never_answered_by_it(engine):
    async def scenario() -> None:
        async with engine.worker_of_two() as models:
            async with engine.serving():
                await until(lambda: models._table is not None)
                stale = await models.load_to_use(None, None)
            await until(lambda: models._table is None)
            with pytest.raises(NotReadyError, match="is starting"):
                await models.load_to_use(None, None)
            async with engine.serving():
                await until(lambda: models._table is not None)
                with pytest.raises(NotReadyError, match="has been replaced"):
                    await stale.encode(PIXELS)
                models.end_use(stale)
                async with models.use(None, None) as served:
                    await served.encode(PIXELS)

    run(scenario())


def test_a_model_that_was_taken_down_stays_down_with_another_engine_process(engine):
    async def scenario() -> None:
        async with engine.worker_of_two() as models:
            async with engine.serving():
                await until(lambda: models._table is not None)
                await models.unload("tiny")
            await until(lambda: models._table is None)
            async with engine.serving() as (server, _):
                server.publish()
                await until(lambda: models._table is not None)
                with pytest.raises(UnknownModelError, match="taken down by an operator"):
                    await models.load_to_use("tiny", None)
                await models.load("tiny")
                async with models.use("tiny", None):
                    pass

    run(scenario())


def test_a_version_that_requests_name_is_loaded_by_another_engine_process(engine):
    async def scenario() -> None:
        async with engine.worker_of_two() as models:
            async with engine.serving(versions_kept=1):
                await until(lambda: models._table is not None)
                async with models.use("tiny", 1):
                    pass
                await until(lambda: engine.remembered.is_named("tiny", 1))
            for version in (2, 3):
                write_bundle(engine.models / "tiny" / str(version))
            await until(lambda: models._table is None)
            async with engine.serving(versions_kept=1) as (_, repository):
                await until(lambda: models._table is not None)
                async with models.use("tiny", 1) as named, models.use("tiny", None) as newest:
                    assert (named.version, newest.version) == (1, 3)
                assert sorted(one.version for one in repository.loaded()) == [1, 3]

    run(scenario())


def test_what_waits_for_an_engine_process_that_dies_gets_an_error(engine):
    async def scenario() -> None:
        async with engine.worker_of_two() as models:
            async with engine.serving() as (_, repository):
                await until(lambda: models._table is not None)
                served = await models.load_to_use(None, None)
                [there] = repository.loaded()
                there.batcher.submit = lambda *_: asyncio.sleep(3600)
                asking = asyncio.create_task(served.encode(PIXELS))
                await until(lambda: there.users == 1)
            with pytest.raises(NotReadyError):
                await asking

    run(scenario())


def freeze(server: EngineServer) -> None:
    """The engine process reads nothing any more."""
    for worker in server._workers:
        worker.channel._transport.pause_reading()


def thaw(server: EngineServer) -> None:
    for worker in server._workers:
        worker.channel._transport.resume_reading()


ASKED: dict[str, Callable[[RemoteModels], Awaitable[object]]] = {
    "names": lambda models: models.names(),
    "index": lambda models: models.index(),
    "describe": lambda models: models.describe("tiny", manifests=False),
    "graphs": lambda models: models.graphs(),
    "load": lambda models: models.load("tiny"),
    "unload": lambda models: models.unload("tiny"),
    "set_traffic": lambda models: models.set_traffic("tiny", None),
    "ready": lambda models: models.ready(),
    "metrics": lambda models: models.metrics(),
    "find": lambda models: models.load_to_use("tiny", 7),
}


def test_nothing_but_a_run_waits_for_an_engine_process_that_does_not_answer(engine, monkeypatch):
    async def scenario() -> None:
        async with (
            engine.serving() as (server, _),
            engine.worker() as models,
            models.use(None, None) as served,
        ):
            freeze(server)
            running = asyncio.create_task(served.encode(PIXELS))
            with monkeypatch.context() as hurrying:
                hurrying.setattr("service.workers.remote_models.ANSWER_S", 0.05)
                for asked in (*ASKED.values(), lambda _: served.is_answering()):
                    with pytest.raises(NotReadyError, match="does not answer"):
                        await asked(models)
            await models.check_alive()  # which is the worker's own
            assert not running.done()
            thaw(server)
            await running
            assert await models.names() == ["tiny"]

    run(scenario())


def test_a_load_takes_its_time_while_the_engine_process_answers(engine, monkeypatch):
    monkeypatch.setattr("service.workers.remote_models.ANSWER_S", 0.5)

    async def scenario() -> None:
        async with engine.serving() as (server, _), engine.worker() as models:
            may_end = asyncio.Event()
            server.calls["load"] = lambda _: may_end.wait()
            loading = asyncio.create_task(models.load("tiny"))
            for _ in range(20):
                await asyncio.sleep(0.06)
                assert await models.names() == ["tiny"]
            assert not loading.done()
            may_end.set()
            await loading

    run(scenario())


def test_a_table_that_does_not_come_is_not_waited_for(engine, monkeypatch):
    monkeypatch.setattr("service.workers.remote_models.ANSWER_S", 0.05)

    async def scenario() -> None:
        async with engine.serving() as (server, _), engine.worker() as models:
            server._generation.value += 1
            with pytest.raises(NotReadyError, match="does not answer"):
                await models.load_to_use(None, None)

    run(scenario())


def test_a_worker_has_its_share_of_the_pictures_that_wait_for_decoding(engine):
    facts = {"queue_images": 8, "max_images_per_request": 2, "max_reconstructions": 2}

    async def scenario() -> None:
        app = create_app(settings_for(engine.models, workers=2, **facts), engine=engine.address)
        async with engine.serving(), app.router.lifespan_context(app) as state:
            pool = state["service"].pool
            with pool.room_for(4), pytest.raises(OverloadedError, match="at most 4 may"), pool.room_for(1):
                pass

    run(scenario())


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 50, 1000])
def test_messages_arrive_whole_however_they_are_cut(cut):
    sent, taken = bytearray(), []
    messages = [("a", 1), ("b", PIXELS.tobytes()), (), ("c" * 300,)]

    class Transport:
        def write(self, data: bytes) -> None:
            sent.extend(data)

    async def send() -> None:
        sender = Channel(lambda: None, lambda _: None, lambda: None)
        sender.connection_made(Transport())
        for message in messages:
            sender.send(message)
        await asyncio.sleep(0)

    run(send())
    taker = Channel(lambda: None, taken.append, lambda: None)
    for start in range(0, len(sent), cut):
        taker.data_received(bytes(sent[start : start + cut]))
    assert taken == messages


def test_an_error_that_cannot_be_sent_is_sent_as_its_text():
    class LocalError(Exception):
        """Pickle does not find it."""

    told = _portable(LocalError("no room"))
    assert str(told) == "LocalError: no room"
    assert _portable(UnknownModelError("x")).args == ("x",)
