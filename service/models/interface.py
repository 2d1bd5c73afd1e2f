"""What requests need of models: which are served, and their answers.

The models may be in this process (`LocalModels`), or in an engine process that several workers share
(`service.workers.remote_models`).
"""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Manifest, Role
from service.errors import InvalidFieldError, NoDecoderError, NoExplainGraphError, shown
from service.models.index_entry import IndexEntry
from service.models.traffic import Traffic

# N images, J classes, D numbers of a pose, H rows, W columns, C channels

Floats = NDArray[np.float32]

# Vector poses have lengths below 1, the numbers of matrix poses are a few units; larger numbers than this are
# mistakes, and float32 overflows.
MAX_POSE_VALUE = 1e6


class LoadedGraph(NamedTuple):
    """A graph of a loaded version, what runs it, and what it has done.

    Attributes:
        model: the bundle's name.
        device: that it runs on.
        parallel_batches: how many batches run side by side, each on an inference thread.
        max_batch: images in a batch.
        statistics: see `GraphStatistics.describe`.
    """

    model: str
    version: int
    role: Role
    device: str
    parallel_batches: int
    max_batch: int
    statistics: dict[str, Any]


class Serving(NamedTuple):
    """A version that answers, the device that it runs on, and why it is slower than it could be, if it is."""

    full_name: str
    device: str
    warnings: list[str]


class ServedModel(ABC):
    """A version of a model, as a request sees it.

    Attributes:
        name: of the model.
        version: of the bundle.
        manifest: of the bundle.
    """

    name: str
    version: int
    manifest: Manifest

    @cached_property
    def full_name(self) -> str:
        """Name and version, such as capsnet-mnist/3."""
        return f"{self.name}/{self.version}"

    @cached_property
    def digest(self) -> str:
        """The bundle's digest: answers with different digests come from different weights."""
        return self.manifest.digest

    @abstractmethod
    async def run(self, role: Role, *feeds: Floats) -> tuple[Floats, ...]:
        """The outputs of one of its graphs, [N, ...] each in the manifest's order, of inputs [N, ...]."""

    @abstractmethod
    async def is_answering(self) -> bool:
        """Whether its inference threads answer."""

    async def encode(self, pixels: Floats) -> tuple[Floats, Floats]:
        """Pixels [N, H, W, C] in 0-1 to probabilities [N, J] and poses [N, J, D]."""
        probabilities, poses = await self.run("encoder", pixels)
        return probabilities, poses

    async def decode(self, poses: Floats, mask: Floats) -> Floats:
        """Poses [N, J, D] and one-hot mask [N, J] to pictures [N, H, W, C] in 0-1."""
        (pictures,) = await self.run("decoder", poses, mask)
        return pictures

    async def explain(self, pixels: Floats) -> dict[str, Floats]:
        """Pixels [N, H, W, C] in 0-1 to all outputs of the explain graph, [N, ...] each, by name.

        Raises:
            NoExplainGraphError: there is none.
        """
        self.require_explain_graph()
        names = [tensor.name for tensor in self.manifest.graphs["explain"].outputs]
        return dict(zip(names, await self.run("explain", pixels), strict=True))

    async def decode_classes(self, poses: Floats, classes: NDArray[np.intp]) -> Floats:
        """Poses [N, J, D], of each only the one of class [N], to pictures [N, H, W, C] in 0-1."""
        return await self.decode(poses, one_hot(classes, self.manifest))

    def require_explain_graph(self) -> None:
        """The model can show how it routes.

        Raises:
            NoExplainGraphError: it cannot.
        """
        if "explain" not in self.manifest.graphs:
            raise NoExplainGraphError(
                f"{self.full_name} was published without explain.onnx; "
                "export its run again with `capsnet-export bundle`"
            )

    def require_decoder(self) -> None:
        """The model can reconstruct.

        Raises:
            NoDecoderError: it cannot.
        """
        if "decoder" not in self.manifest.graphs:
            raise NoDecoderError(f"{self.full_name} was made without a decoder; it cannot reconstruct")

    def class_index(self, label: str) -> int:
        """The place of a class among the model's.

        Raises:
            InvalidFieldError: the model has no such class.
        """
        names = self.manifest.class_names
        if label not in names:
            listed = ", ".join(islice(names, 100))
            raise InvalidFieldError(
                f"label {shown(label)} is not a class of {self.name}; the classes are {listed}"
            )
        return names.index(label)

    def heading(self) -> dict[str, Any]:
        """The fields that every answer of this model begins with."""
        shape = self.manifest.pose_shape
        answer: dict[str, Any] = {"model": self.name, "version": self.version, "digest": self.digest}
        return answer if len(shape) == 1 else {**answer, "pose_shape": shape}


class Models(Protocol):
    """The models of a service, wherever they are."""

    def use(self, model: str | None, version: int | None) -> AbstractAsyncContextManager[ServedModel]:
        """The model of a request, kept loaded while the request needs it; loaded first if it has to be.

        Raises:
            NotReadyError: nothing is loaded yet, or the version that a rule means is not served.
            ModelRequiredError: several models are served and none is named.
            UnknownModelError: no such model or version is served.
            RefusedModelError: what is on disk under that name cannot be served.
        """

    async def names(self) -> list[str]:
        """Every model that is on disk.

        Raises:
            NotReadyError: the first scan has not finished.
        """

    async def index(self) -> list[IndexEntry]:
        """Every version of every model that is on disk, by name, newest first.

        Raises:
            NotReadyError: the first scan has not finished.
        """

    async def describe(self, model: str, *, manifests: bool) -> dict[str, Any]:
        """What is on disk of a model and what has become of it, newest first.

        Raises:
            NotReadyError: the first scan has not finished.
            UnknownModelError: there is no such model.
        """

    async def graphs(self) -> list[LoadedGraph]:
        """Every graph of every loaded version, by name and version, of each the encoder first."""

    async def load(self, model: str) -> None:
        """Load the newest versions of a model as they are on disk now, even if it was taken down.

        Raises:
            NotReadyError: the first scan has not finished, or an explicit device is not available.
            UnknownModelError: there is no such model, or it was taken down again meanwhile.
            RefusedModelError: none of its versions can be served; says why.
        """

    async def unload(self, model: str) -> None:
        """Take a model down until `load`: it finishes what it has begun.

        Raises:
            NotReadyError: the first scan has not finished.
            UnknownModelError: there is no such model.
        """

    async def set_traffic(self, model: str, rule: Traffic | None) -> None:
        """Write which version of a model answers requests that name none; holds for all that come after this.

        Args:
            model: its name.
            rule: None for the newest.

        Raises:
            NotReadyError: the first scan has not finished, or an explicit device is not available.
            UnknownModelError: there is no such model, or no version that the rule names.
            RefusedModelError: such a version cannot be served; says why.
            NotWritableError: the folder of the model cannot be written.
        """

    async def ready(self) -> list[Serving]:
        """Everything that is loaded.

        Raises:
            NotReadyError: requests would not be answered; says why.
        """

    async def check_alive(self) -> None:
        """The service can still recover by itself from whatever is wrong.

        Raises:
            InferenceStoppedError: an inference thread of a version has died; says which.
        """

    async def metrics(self) -> bytes:
        """The metrics of loading and inference, in Prometheus' text format 0.0.4."""


def one_hot(classes: NDArray[np.intp], manifest: Manifest) -> Floats:
    """Indices [N] as the decoder's mask [N, J]."""
    return np.eye(len(manifest.class_names), dtype=np.float32)[classes]
