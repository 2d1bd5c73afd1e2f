"""A loaded version of a model: it answers requests until the last one that uses it is over."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from export.contract.architecture import CPU_BATCH
from export.contract.manifest import Manifest, Role
from service.inference.batcher import Batcher
from service.inference.engine import Engine
from service.inference.explain_session import MAX_BATCH
from service.inference.graph_queue import GraphQueue
from service.models.interface import LoadedGraph, ServedModel
from service.models.scanner import BundleVersion
from service.observability.metrics import Metrics
from service.settings import Settings

# N images

Floats = NDArray[np.float32]


@dataclass(eq=False)
class LoadedModel(ServedModel):
    """A loaded version, its inference threads and the requests that use it.

    Attributes:
        bundle: the files that it was loaded from.
        queues: of its graphs, the encoder's first.
        users: requests that use it now.
        holders: worker processes that may have requests which are going to use it.
        unused: set when a user or a holder is done.
    """

    name: str
    version: int
    manifest: Manifest
    bundle: BundleVersion
    engine: Engine
    batcher: Batcher
    queues: dict[Role, GraphQueue]
    users: int = 0
    holders: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    @override
    async def run(self, role: Role, *feeds: Floats) -> tuple[Floats, ...]:
        return await self.batcher.submit(self.queues[role], *feeds)

    @override
    async def is_answering(self) -> bool:
        return self.batcher.answering

    def describe(self) -> dict[str, Any]:
        """What it runs on, as /models shows it."""
        graphs = {role: graph.file for role, graph in self.manifest.graphs.items()}
        return {
            "device": self.engine.device,
            "provider": self.engine.provider,
            "graphs": graphs,
            "encoder": self.engine.encoder.describe(),
            "precision": self.engine.precision,
            "digest": self.digest,
        }

    def graphs(self) -> list[LoadedGraph]:
        """Its graphs, the encoder first."""
        engine = self.engine
        return [
            LoadedGraph(
                self.name,
                self.version,
                role,
                "cpu" if role == "explain" else engine.device,
                engine.parallel_batches,
                queue.max_batch,
                queue.statistics.describe(),
            )
            for role, queue in self.queues.items()
        ]

    async def drain(self) -> None:
        """Wait until no request uses this version, then close it."""
        while self.users or self.holders:
            self.unused.clear()
            await self.unused.wait()
        await self.close()

    async def close(self) -> None:
        """End the inference threads, refuse what still waits, and free the engine's sessions."""
        await asyncio.to_thread(self.batcher.close)
        await asyncio.to_thread(self.engine.close)


def start_model(
    model: str, version: int, bundle: BundleVersion, engine: Engine, settings: Settings, metrics: Metrics
) -> LoadedModel:
    """Give a loaded engine its inference threads, and each of its graphs a queue.

    Raises:
        RuntimeError: the system has no more threads.
    """
    on_cpu = settings.max_batch or CPU_BATCH[engine.manifest.architecture]  # where the explain graph runs
    of_version = metrics.model(model, version)
    try:
        batcher = Batcher(
            f"{model}/{version}",
            parallel_batches=engine.parallel_batches,
            max_batch=engine.decoder_max_batch,
            queue_images=settings.queue_images,
            deadline_ms=settings.deadline_ms,
            metrics=of_version,
        )
    except RuntimeError:
        metrics.forget(model, version)
        raise
    encoder_queue = batcher.add_graph(engine.encode, engine.encoder.large_batch_above, engine.max_batch)
    queues: dict[Role, GraphQueue] = {"encoder": encoder_queue}
    if "decoder" in engine.manifest.graphs:
        queues["decoder"] = batcher.add_graph(engine.decode)
    if "explain" in engine.manifest.graphs:
        queues["explain"] = batcher.add_graph(engine.explain, max_batch=min(MAX_BATCH, on_cpu))
    return LoadedModel(model, version, engine.manifest, bundle, engine, batcher, queues)
