"""What the service does for itself while it serves."""

import asyncio
from dataclasses import fields
from pathlib import Path

from live_service import settings_for
from tiny_bundle import write_bundle

from service.engine import Engine
from service.housekeeping import keep_small
from service.metrics import Metrics
from service.repository import Repository

OFTEN_S = 0.02


class Watched(Engine):
    """An engine that counts how often it gives back."""

    def give_back(self) -> None:
        super().give_back()
        returns.append(self)


returns: list[Engine] = []


def test_memory_is_given_back_after_work_and_not_while_there_is_none(tmp_path: Path):
    write_bundle(tmp_path / "tiny" / "1")

    async def scenario() -> None:
        repository = Repository(settings_for(tmp_path), Metrics())
        await repository.scan()
        (served,) = repository.loaded()
        served.engine = Watched(**{one.name: getattr(served.engine, one.name) for one in fields(Engine)})
        keeping = asyncio.create_task(keep_small(repository, OFTEN_S))
        for _ in range(2):
            returns.clear()
            async with repository.use("tiny", None):
                pass
            async with asyncio.timeout(10):
                while not returns:
                    await asyncio.sleep(OFTEN_S)
            await asyncio.sleep(5 * OFTEN_S)
            assert len(returns) == 1
        keeping.cancel()
        await repository.close()

    asyncio.run(scenario())
