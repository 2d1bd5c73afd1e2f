"""What the service does for itself while it serves."""

import asyncio
import logging
from dataclasses import fields
from pathlib import Path

import pytest

from service.inference.engine import Engine
from service.models.background import (
    release_memory_after_work,
    restart_on_error,
    stop_when_inference_is_dead,
)
from service.models.remeasuring import remeasure_graphs
from service.models.repository import Repository
from service.observability.metrics import Metrics
from tests.support.live_service import settings_for
from tests.support.tiny_bundle import write_bundle

OFTEN_S = 0.02


class Watched(Engine):
    """An engine that counts how often it gives back."""

    def release_memory(self) -> None:
        super().release_memory()
        returns.append(self)


returns: list[Engine] = []


def test_memory_is_given_back_after_work_and_not_while_there_is_none(tmp_path: Path):
    write_bundle(tmp_path / "tiny" / "1")

    async def scenario() -> None:
        repository = Repository(settings_for(tmp_path), Metrics())
        await repository.scan()
        (served,) = repository.loaded()
        served.engine = Watched(**{one.name: getattr(served.engine, one.name) for one in fields(Engine)})
        keeping = asyncio.create_task(release_memory_after_work(repository, OFTEN_S))
        for _ in range(2):
            returns.clear()
            async with repository.use("tiny", None):
                pass
            async with asyncio.timeout(60):
                while not returns:
                    await asyncio.sleep(OFTEN_S)
            await asyncio.sleep(5 * OFTEN_S)
            assert len(returns) == 1
        keeping.cancel()
        await repository.close()

    asyncio.run(scenario())


class Failing(Engine):
    """An engine that gives back at the second call."""

    def release_memory(self) -> None:
        returns.append(self)
        if len(returns) == 1:
            raise RuntimeError("not this time")
        super().release_memory()


def test_memory_is_given_back_after_a_failure_to_which_the_log_has_the_cause(tmp_path: Path, caplog):
    write_bundle(tmp_path / "tiny" / "1")

    async def scenario() -> None:
        repository = Repository(settings_for(tmp_path), Metrics())
        await repository.scan()
        (served,) = repository.loaded()
        served.engine = Failing(**{one.name: getattr(served.engine, one.name) for one in fields(Engine)})
        returns.clear()
        keeping = asyncio.create_task(release_memory_after_work(repository, OFTEN_S))
        async with repository.use("tiny", None):
            pass
        async with asyncio.timeout(60):
            while len(returns) < 2:
                await asyncio.sleep(OFTEN_S)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await repository.close()

    with caplog.at_level(logging.ERROR, "service.models.background"):
        asyncio.run(scenario())
    assert "release_memory_after_work failed" in caplog.text
    assert "RuntimeError: not this time" in caplog.text


@pytest.mark.parametrize("work", [release_memory_after_work, stop_when_inference_is_dead, remeasure_graphs])
def test_everything_that_is_done_for_ever_goes_on_after_a_failure(work):
    assert work.__code__ is restart_on_error(work).__code__
