"""Repositories of models for tests, and what they have loaded."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from service.errors import NotReadyError
from service.models.repository import Repository
from service.observability.metrics import Metrics
from tests.support.live_service import settings_for


@asynccontextmanager
async def opened(models: Path | str, **changes: object) -> AsyncIterator[Repository]:
    repository = Repository(settings_for(Path(models), **changes), Metrics())
    try:
        await repository.first_scan()
        yield repository
    finally:
        await repository.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Let it end within the time that a busy machine may need: what it waits for may never come."""
    asyncio.run(asyncio.wait_for(scenario, 120))


def loaded(repository: Repository) -> list[str]:
    return sorted(one.full_name for one in repository.ready())


async def usable(repository: Repository, model: str) -> bool:
    try:
        async with repository.use(model, None):
            return True
    except NotReadyError:
        return False


def states(repository: Repository, model: str) -> dict[int, str]:
    described = repository.describe(model, manifests=False)["versions"]
    return {version["version"]: version["state"] for version in described}


def inference_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("inference-")]
