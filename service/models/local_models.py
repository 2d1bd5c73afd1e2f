"""The models of a service that has them in its own process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from typing_extensions import override

from service.inference.memory import release_memory
from service.models.background import (
    load_and_watch,
    release_after_work,
    stop_when_inference_is_dead,
)
from service.models.gauges import ModelGauges
from service.models.index_entry import IndexEntry
from service.models.interface import LoadedGraph, Models, ServedModel, Serving
from service.models.remeasuring import remeasure_graphs
from service.models.remembered import Remembered
from service.models.repository import Repository
from service.models.traffic import Traffic
from service.observability.metrics import Metrics
from service.settings import Settings


class LocalModels(Models):
    """The repository of this process.

    Args:
        repository: loads and drops versions.
        gathered: which the repository tells what it does.
    """

    def __init__(self, repository: Repository, gathered: Metrics) -> None:
        self.repository = repository
        self.gathered = gathered
        gathered.register(ModelGauges(repository))

    @override
    def use(self, model: str | None, version: int | None) -> AbstractAsyncContextManager[ServedModel]:
        return self.repository.use(model, version)

    @override
    async def names(self) -> list[str]:
        return self.repository.names()

    @override
    async def index(self) -> list[IndexEntry]:
        return self.repository.index()

    @override
    async def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        return self.repository.describe(model, manifests=manifests)

    @override
    async def graphs(self) -> list[LoadedGraph]:
        loaded = sorted(self.repository.loaded(), key=lambda one: (one.name, one.version))
        return [graph for one in loaded for graph in one.graphs()]

    @override
    async def load(self, model: str) -> None:
        await self.repository.load(model)

    @override
    async def unload(self, model: str) -> None:
        await self.repository.unload(model)

    @override
    async def set_traffic(self, model: str, rule: Traffic | None) -> None:
        await self.repository.set_traffic(model, rule)

    @override
    async def ready(self) -> list[Serving]:
        ready = self.repository.ready()
        return [Serving(one.full_name, one.engine.device, one.engine.warnings) for one in ready]

    @override
    async def check_alive(self) -> None:
        self.repository.check_alive()

    @override
    async def metrics(self) -> bytes:
        return self.gathered.scrape()


@asynccontextmanager
async def run_models(
    settings: Settings,
    on_loaded: Callable[[Repository], None] | None = None,
    on_stopped: Callable[[str], None] | None = None,
    remembered: Remembered | None = None,
) -> AsyncIterator[LocalModels]:
    """Models that load in the background, with what keeps them in line with the disk.

    Args:
        settings: deployment facts.
        on_loaded: called once the first scan has finished; the repository's `failure` says whether
            anything can be served.
        on_stopped: called with the reason once an inference thread has died, and only a new process helps.
        remembered: what an engine process before this one knew.
    """
    metrics = Metrics()
    repository = Repository(settings, metrics, remembered)
    tasks = [
        asyncio.create_task(load_and_watch(repository, on_loaded)),
        asyncio.create_task(remeasure_graphs(repository)),
        asyncio.create_task(release_after_work(lambda: repository.work_done, release_memory)),
    ]
    if on_stopped:
        tasks.append(asyncio.create_task(stop_when_inference_is_dead(repository, on_stopped)))
    try:
        yield LocalModels(repository, metrics)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await repository.close()
