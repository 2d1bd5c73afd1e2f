"""What the service does for itself while it serves."""

import asyncio
import logging
from pathlib import Path

import pytest

from service.inference.memory import release_memory
from service.models.background import (
    release_after_work,
    restart_on_error,
    stop_when_inference_is_dead,
)
from service.models.remeasuring import remeasure_graphs
from service.models.repository import Repository
from service.observability.metrics import Metrics
from tests.support.live_service import settings_for
from tests.support.tiny_bundle import write_bundle

OFTEN_S = 0.02


def test_memory_is_given_back_after_work_and_not_while_there_is_none(tmp_path: Path):
    write_bundle(tmp_path / "tiny" / "1")
    returns = []

    def counted() -> None:
        release_memory()
        returns.append(True)

    async def scenario() -> None:
        repository = Repository(settings_for(tmp_path), Metrics())
        await repository.scan()
        keeping = asyncio.create_task(release_after_work(lambda: repository.work_done, counted, OFTEN_S))
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


def test_memory_is_given_back_after_a_failure_to_which_the_log_has_the_cause(tmp_path: Path, caplog):
    write_bundle(tmp_path / "tiny" / "1")
    returns = []

    def failing_at_first() -> None:
        returns.append(True)
        if len(returns) == 1:
            raise RuntimeError("not this time")
        release_memory()

    async def scenario() -> None:
        repository = Repository(settings_for(tmp_path), Metrics())
        await repository.scan()
        keeping = asyncio.create_task(
            release_after_work(lambda: repository.work_done, failing_at_first, OFTEN_S)
        )
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
    assert "release_after_work failed" in caplog.text
    assert "RuntimeError: not this time" in caplog.text


@pytest.mark.parametrize("work", [release_after_work, stop_when_inference_is_dead, remeasure_graphs])
def test_everything_that_is_done_for_ever_goes_on_after_a_failure(work):
    assert work.__code__ is restart_on_error(work).__code__
