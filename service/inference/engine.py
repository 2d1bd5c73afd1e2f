"""A loaded bundle: its graphs as functions from arrays to arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.contract.manifest import Manifest
from service.inference.explain_session import ExplainSession
from service.inference.gpu_session import GpuSession
from service.inference.providers import PROVIDERS, UsedDevice
from service.inference.session_pool import SessionPool
from service.inference.sessions import Session
from service.settings import Precision

# N images, H rows, W columns, C channels, J classes, D numbers of a pose

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Engine:
    """A loaded bundle. `encode`, `decode` and `explain` block.

    Attributes:
        device: the device in use.
        max_batch: images per run of the encoder, at most.
        decoder_max_batch: of the decoder.
        parallel_batches: how many threads may call at the same time.
        encoder: the sessions of the encoder.
        decoder: the session of the decoder, if the bundle has one.
        precision: of the encoder's products.
        explainer: the explain graph, if the bundle has one.
    """

    manifest: Manifest
    device: UsedDevice
    max_batch: int
    decoder_max_batch: int
    parallel_batches: int
    encoder: SessionPool
    decoder: Session | None
    precision: Precision = "float32"
    explainer: ExplainSession | None = None

    def encode(self, pixels: Floats, *, exclusive: bool = True) -> tuple[Floats, Floats]:
        """Pixels [N, H, W, C] in 0-1 to probabilities [N, J] and poses [N, J, D].

        Args:
            pixels: at most `max_batch` images.
            exclusive: whether it has all cores.
        """
        session = self.encoder.session(len(pixels), exclusive=exclusive)
        probabilities, poses = session.run(["probabilities", "poses"], {"pixels": pixels})
        return probabilities, poses

    def decode(self, poses: Floats, mask: Floats, *, exclusive: bool = True) -> tuple[Floats]:
        """Poses [N, J, D] and one-hot mask [N, J] to pictures [N, H, W, C] in 0-1.

        At most `decoder_max_batch` of them. Exclusive or not, it runs with one thread's share of the cores,
        which is enough for it.
        """
        assert self.decoder is not None
        (reconstruction,) = self.decoder.run(["reconstruction"], {"poses": poses, "mask": mask})
        return (reconstruction,)

    def explain(self, pixels: Floats, *, exclusive: bool = True) -> tuple[Floats, ...]:
        """Pixels [N, H, W, C] in 0-1 to the outputs of the explain graph, in the manifest's order.

        Exclusive or not, it runs with one thread's share of the cores.

        Raises:
            NoExplainGraphError: the graph cannot be loaded any more; see `ExplainSession.run`.
        """
        assert self.explainer is not None
        return self.explainer.run(pixels)

    def close(self) -> None:
        """Free the sessions on a GPU, after the last call of `encode` and `decode`; does not wait."""
        for session in (*self.encoder.all, self.decoder):
            if isinstance(session, GpuSession):
                session.close()

    @property
    def provider(self) -> str:
        """ONNX Runtime's execution provider."""
        return PROVIDERS[self.device]

    @property
    def warnings(self) -> list[str]:
        """Why it is slower than it could be on a GPU; empty if it is not."""
        sessions = [one for one in (*self.encoder.all, self.decoder) if isinstance(one, GpuSession)]
        return sorted({session.warning for session in sessions} - {""})
