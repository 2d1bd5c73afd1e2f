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

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]


@dataclass(eq=False)
class LoadedModel(ServedModel):
    """A loaded version, its inference threads and the requests that use it.

    Attributes:
        bundle: the files that it was loaded from.
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
    encoder_queue: GraphQueue
    decoder_queue: GraphQueue
    explain_queue: GraphQueue
    users: int = 0
    holders: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    @override
    async def encode(self, pixels: Floats) -> tuple[Floats, Floats]:
        probabilities, poses = await self.batcher.submit(self.encoder_queue, pixels)
        return probabilities, poses

    @override
    async def decode(self, poses: Floats, mask: Floats) -> Floats:
        (pictures,) = await self.batcher.submit(self.decoder_queue, poses, mask)
        return pictures

    @override
    async def explain(self, pixels: Floats) -> dict[str, Floats]:
        self.require_explain_graph()
        names = [tensor.name for tensor in self.manifest.graphs["explain"].outputs]
        return dict(zip(names, await self.batcher.submit(self.explain_queue, pixels), strict=True))

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
        queues: dict[Role, GraphQueue] = {
            "encoder": self.encoder_queue,
            "decoder": self.decoder_queue,
            "explain": self.explain_queue,
        }
        engine = self.engine
        return [
            LoadedGraph(
                self.name,
                self.version,
                role,
                engine.device,
                engine.workers,
                queue.max_batch,
                queue.statistics.describe(),
            )
            for role, queue in queues.items()
            if role in self.manifest.graphs
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
            workers=engine.workers,
            max_batch=engine.decoder_max_batch,
            queue_images=settings.queue_images,
            deadline_ms=settings.deadline_ms,
            metrics=of_version,
        )
    except RuntimeError:
        metrics.forget(model, version)
        raise
    return LoadedModel(
        model,
        version,
        engine.manifest,
        bundle,
        engine,
        batcher,
        encoder_queue=batcher.add_graph(engine.encode, engine.encoder.large_batch_above, engine.max_batch),
        decoder_queue=batcher.add_graph(engine.decode),
        explain_queue=batcher.add_graph(engine.explain, max_batch=min(MAX_BATCH, on_cpu)),
    )
