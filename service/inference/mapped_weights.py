"""The weights of a derived graph: mapped into memory once, and read by every session of it.

By default each session maps them anew. The pages are the same, but the system counts them as resident once
for every mapping.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime as ort

from export.contract.graph_file import FLOAT32, far_tensors

Weights = Mapping[str, ort.OrtValue]  # by name


def map_weights(file: Path) -> Weights:
    """The float32 weights that a graph keeps in a file beside it; the session reads other types itself.

    Args:
        file: the graph.

    Raises:
        BundleError: it is not a graph.
        OSError: a file cannot be read.
        TypeError, ValueError: the file is shorter than the graph says, or empty.
    """
    mapped = cache(lambda name: np.memmap(file.parent / name, np.uint8, "r"))
    weights = {}
    for tensor in far_tensors(file.read_bytes(), file.name):
        if tensor.data_type == FLOAT32:
            array = np.ndarray(tensor.shape, np.float32, mapped(tensor.file), tensor.offset)
            weights[tensor.name] = ort.OrtValue.ortvalue_from_numpy(array)
    return weights


class MappedSession(ort.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
    """A session on the CPU that shares its weights with others.

    Args:
        file: the graph.
        options: of the session; the weights are added.
        weights: of the graph; they live as long as a session that reads them.
    """

    def __init__(self, file: Path, options: ort.SessionOptions, weights: Weights) -> None:
        for name, value in weights.items():
            options.add_initializer(name, value)
        self._weights = weights
        super().__init__(file, options, providers=["CPUExecutionProvider"])
