"""The graphs of a bundle for browsers: all weights in one file, in float16, which halves the download.

A graph computes in float32: it casts each weight once, when a runtime opens it. So rounding the weights, and
with them the large constants of EM routing, is all that differs from the bundle's own graphs.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export.contract.manifest import Manifest, Role, read_checked
from export.explain.shared_weights import hold_weights

WEIGHTS_FILE = "weights.bin"
MIN_WEIGHTS = 256  # smaller tensors stay in the graph, in float32
ALIGNMENT = 64  # bytes
LARGEST_HALF = float(np.finfo(np.float16).max)


class RoundingError(ValueError):
    """A weight that float16 does not hold; the message names it."""


@dataclass
class HalfWeights:
    """Weights in float16 behind one another; of equal ones, such as those that two graphs share, the first.

    Attributes:
        content: of the file so far.
    """

    content: bytearray = field(default_factory=bytearray)
    _offsets: dict[bytes, int] = field(default_factory=dict)

    def add(self, values: bytes) -> int:
        """Where in the file these values are; adds them unless they are there."""
        if values not in self._offsets:
            self.content += bytes(-len(self.content) % ALIGNMENT)
            self._offsets[values] = len(self.content)
            self.content += values
        return self._offsets[values]


def browser_graphs(bundle: Path, manifest: Manifest) -> tuple[dict[Role, bytes], bytes]:
    """The graphs of a bundle, which read their weights from one file, and the content of that file.

    Args:
        bundle: folder of the version.
        manifest: of the bundle.

    Raises:
        BundleError: a file is missing, or not the one that the manifest describes.
        RoundingError: a weight is too large for float16.
    """
    contents = {role: read_checked(bundle, graph) for role, graph in manifest.graphs.items()}
    if "explain" in contents:  # it reads its weights from the encoder's file
        contents["explain"] = hold_weights(contents["explain"], contents["encoder"])
    weights = HalfWeights()
    graphs = {role: halved(content, weights) for role, content in contents.items()}
    return graphs, bytes(weights.content)


def halved(content: bytes, weights: HalfWeights) -> bytes:
    """A graph with its weights in float16, in another file.

    Args:
        content: of the graph, in one file.
        weights: of that other file; those of the graph are added.

    Raises:
        RoundingError: a weight is too large for float16.
    """
    model = onnx.load_model_from_string(content)
    graph = model.graph
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < MIN_WEIGHTS:
            continue
        name, values = tensor.name, _rounded(tensor)
        offset = weights.add(values)
        half = TensorProto(name=f"{name}/half", data_type=TensorProto.FLOAT16, dims=tensor.dims)
        half.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", len(values))):
            half.external_data.add(key=key, value=str(value))
        tensor.CopyFrom(half)
        casts.append(helper.make_node("Cast", [half.name], [name], f"{name}/cast", to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    made: bytes = model.SerializeToString()
    return made


def _rounded(tensor: TensorProto) -> bytes:
    values = numpy_helper.to_array(tensor)
    largest = float(np.abs(values).max())
    if not largest <= LARGEST_HALF:
        raise RoundingError(f"{tensor.name} holds {largest:g}; float16 ends at {LARGEST_HALF:g}")
    return values.astype("<f2").tobytes()
