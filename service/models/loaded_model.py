"""A loaded version of a model: it answers requests until the last one that uses it is over."""

import asyncio
import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from service.errors import InvalidFieldError, NoDecoderError, NoExplainGraphError, shown
from service.inference.batcher import Batcher
from service.inference.engine import Engine
from service.inference.explain_session import MAX_BATCH, ExplainSession
from service.inference.graph_queue import GraphQueue
from service.models.scanner import BundleVersion
from service.observability.metrics import Metrics
from service.settings import Settings

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]

# Vector poses have lengths below 1, the numbers of matrix poses are a few units; larger numbers than this are
# mistakes, and float32 overflows.
MAX_POSE_VALUE = 1e6


@dataclass(eq=False)
class LoadedModel:
    """A loaded version, its inference threads and the requests that use it.

    Attributes:
        bundle: the files that it was loaded from.
        users: requests that use it now.
        unused: set when the last user is done.
        last_named_s: when a request last named this version, by the monotonic clock; -inf if none has.
    """

    name: str
    version: int
    bundle: BundleVersion
    engine: Engine
    batcher: Batcher
    encoder_queue: GraphQueue
    decoder_queue: GraphQueue
    explain_queue: GraphQueue
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    last_named_s: float = -math.inf

    @cached_property
    def full_name(self) -> str:
        """Name and version, such as capsnet-mnist/3."""
        return f"{self.name}/{self.version}"

    @cached_property
    def digest(self) -> str:
        """The bundle's digest: answers with different digests come from different weights."""
        return self.engine.manifest.digest

    async def encode(self, pixels: Floats) -> tuple[Floats, Floats]:
        """Pixels [N, H, W, C] in 0-1 to probabilities [N, J] and poses [N, J, D]."""
        probabilities, poses = await self.batcher.submit(self.encoder_queue, pixels)
        return probabilities, poses

    async def decode(self, poses: Floats, mask: Floats) -> Floats:
        """Poses [N, J, D] and one-hot mask [N, J] to pictures [N, H, W, C] in 0-1."""
        (pictures,) = await self.batcher.submit(self.decoder_queue, poses, mask)
        return pictures

    async def decode_classes(self, poses: Floats, classes: NDArray[np.intp]) -> Floats:
        """Poses [N, J, D], of each only the one of class [N], to pictures [N, H, W, C] in 0-1."""
        return await self.decode(poses, one_hot(classes, self.engine.manifest))

    async def explain(self, pixels: Floats) -> dict[str, Floats]:
        """Pixels [N, H, W, C] in 0-1 to all outputs of the explain graph, [N, ...] each, by name.

        Raises:
            NoExplainGraphError: there is none; ask `require_explainer` first.
        """
        explainer = self.require_explainer()
        outputs = await self.batcher.submit(self.explain_queue, pixels)
        return dict(zip(explainer.names, outputs, strict=True))

    def require_explainer(self) -> ExplainSession:
        """The explain graph.

        Raises:
            NoExplainGraphError: the bundle has none.
        """
        if self.engine.explainer is None:
            raise NoExplainGraphError(
                f"{self.full_name} was published without explain.onnx; "
                f"`capsnet-export explain models/{self.name}` adds it"
            )
        return self.engine.explainer

    def class_index(self, label: str) -> int:
        """The place of a class among the model's.

        Raises:
            InvalidFieldError: the model has no such class.
        """
        names = self.engine.manifest.class_names
        if label not in names:
            listed = ", ".join(islice(names, 100))
            raise InvalidFieldError(
                f"label {shown(label)} is not a class of {self.name}; the classes are {listed}"
            )
        return names.index(label)

    def require_decoder(self) -> None:
        """The model can reconstruct.

        Raises:
            NoDecoderError: it cannot.
        """
        if not self.engine.has_decoder:
            raise NoDecoderError(f"{self.full_name} was made without a decoder; it cannot reconstruct")

    def heading(self) -> dict[str, Any]:
        """The fields that every answer of this model begins with."""
        shape = self.engine.manifest.pose_shape
        answer: dict[str, Any] = {"model": self.name, "version": self.version, "digest": self.digest}
        return answer if len(shape) == 1 else {**answer, "pose_shape": shape}

    def describe(self) -> dict[str, Any]:
        """What it runs on, as /models shows it."""
        graphs = {role: graph.file for role, graph in self.engine.manifest.graphs.items()}
        return {
            "device": self.engine.device,
            "provider": self.engine.provider,
            "graphs": graphs,
            "encoder": self.engine.encoder.describe(),
            "precision": self.engine.precision,
            "digest": self.digest,
        }

    async def drain(self) -> None:
        """Wait until no request uses this version, then close it."""
        while self.users:
            self.unused.clear()
            await self.unused.wait()
        await self.close()

    async def close(self) -> None:
        """End the inference threads, refuse what still waits, and free the engine's sessions."""
        await asyncio.to_thread(self.batcher.close)
        await asyncio.to_thread(self.engine.close)


def one_hot(classes: NDArray[np.intp], manifest: Manifest) -> Floats:
    """Indices [N] as the decoder's mask [N, J]."""
    return np.eye(len(manifest.class_names), dtype=np.float32)[classes]


def start_model(
    model: str, version: int, bundle: BundleVersion, engine: Engine, settings: Settings, metrics: Metrics
) -> LoadedModel:
    """Give a loaded engine its inference threads, and each of its graphs a queue."""
    batcher = Batcher(
        f"{model}/{version}",
        workers=engine.workers,
        max_batch=engine.max_batch,
        queue_images=settings.queue_images,
        deadline_ms=settings.deadline_ms,
        metrics=metrics.model(model, version),
    )
    return LoadedModel(
        model,
        version,
        bundle,
        engine,
        batcher,
        encoder_queue=batcher.add_graph(engine.encode, engine.encoder.large_batch_above),
        decoder_queue=batcher.add_graph(engine.decode),
        explain_queue=batcher.add_graph(engine.explain, max_batch=MAX_BATCH),
    )
