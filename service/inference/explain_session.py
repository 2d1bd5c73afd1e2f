"""The explain graph of a loaded bundle: opened when a request first needs it, always on the CPU.

It computes with the encoder's weights, and few requests run it: so they are loaded a second time only once it
is needed, which takes a tenth of a second. Until then the encoder's file is kept open, so that another bundle
may take its place meanwhile. When the bundle is loaded, the graph is opened once to be checked, and closed
again.
"""

import hashlib
import os
import threading
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.graph_file import far_tensors
from export.contract.manifest import BundleError, Manifest
from export.contract.one_line import first_line
from export.optimize.choice import cpu_options
from service.errors import NoExplainGraphError
from service.inference.arena import share_arena
from service.inference.sessions import check_interface

# N images, H rows, W columns, C channels

Floats = NDArray[np.float32]

# Images per run. The votes of each iteration are in memory at once, and larger batches are hardly faster; on
# a GPU's service, whose batches are large, the CPU would keep the encoder waiting for seconds.
MAX_BATCH = 8


class _Opened(NamedTuple):
    session: ort.InferenceSession
    weights: list[ort.OrtValue]  # which the session reads but does not own


class ExplainSession:
    """A session that is not open before its first run. Threads may share it.

    Args:
        bundle: the bundle's folder.
        manifest: of the bundle.
        content: the explain graph, which has been checked.
        threads: that compute.

    Raises:
        OSError: the encoder's file cannot be opened.
    """

    def __init__(self, bundle: Path, manifest: Manifest, content: bytes, threads: int) -> None:
        self._manifest = manifest
        self._content = content
        self._threads = threads
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._encoder = os.open(bundle / manifest.graphs["encoder"].file, os.O_RDONLY)
        self._close_encoder = weakref.finalize(self, os.close, self._encoder)
        self.names = [tensor.name for tensor in manifest.graphs["explain"].outputs]

    def run(self, pixels: Floats) -> tuple[Floats, ...]:
        """Pixels [N, H, W, C] in 0-1 to the graph's outputs in the order of `names`, [N, ...] each. Blocks.

        Raises:
            NoExplainGraphError: the encoder's file has been written over since it was loaded, or cannot be
                read, or the graph cannot be loaded.
        """
        with self._lock:
            self._opened = self._opened or self._open_again()
        return tuple(self._opened.session.run(self.names, {"pixels": pixels}))

    def run_once(self, encoder: bytes, pixels: Floats) -> dict[str, Floats]:
        """As `run`, with the outputs by name, of a session that is closed again.

        Args:
            encoder: the bundle's graph, which lends its weights.
            pixels: [N, H, W, C] in 0-1.

        Raises:
            BundleError: ONNX Runtime cannot read or run the graph, or it is not what the manifest says.
        """
        opened = self._open(encoder)
        try:
            outputs = opened.session.run(self.names, {"pixels": pixels})
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise BundleError(f"samples: {self._file} fails on them: {first_line(error)}") from error
        return dict(zip(self.names, outputs, strict=True))

    def _open_again(self) -> _Opened:
        try:
            opened = self._open(self._read_encoder())
        except (BundleError, OSError) as error:
            raise NoExplainGraphError(
                f"{self._file} of {self._manifest.model} cannot be loaded any more: {first_line(error)}"
            ) from error
        self._close_encoder()
        return opened

    def _read_encoder(self) -> bytes:
        graph = self._manifest.graphs["encoder"]
        with open(self._encoder, "rb", closefd=False) as file:
            file.seek(0)  # an earlier try may have read it
            content = file.read()
        if hashlib.sha256(content).hexdigest() != graph.sha256:
            raise BundleError(f"{graph.file} has been written over since it was loaded")
        return content

    def _open(self, encoder: bytes) -> _Opened:
        options = cpu_options(self._threads)
        options.add_session_config_entry("session.load_model_format", "ONNX")
        share_arena(options)
        try:
            names, weights = _weights(self._content, encoder)
            options.add_external_initializers(names, weights)
            session = ort.InferenceSession(self._content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise BundleError(f"{self._file} cannot be loaded: {first_line(error)}") from error
        check_interface(session, self._manifest.graphs["explain"])
        return _Opened(session, weights)

    @property
    def _file(self) -> str:
        return self._manifest.graphs["explain"].file


def _weights(content: bytes, lender: bytes) -> tuple[list[str], list[ort.OrtValue]]:
    """The names and values of the weights that a graph reads from another file."""
    tensors = list(far_tensors(content, "explain graph"))
    values = [
        # A copy, which begins where the processor can read floats.
        np.frombuffer(lender[tensor.offset : tensor.end], np.float32).reshape(tensor.shape).copy()
        for tensor in tensors
    ]
    return [tensor.name for tensor in tensors], [ort.OrtValue.ortvalue_from_numpy(value) for value in values]
