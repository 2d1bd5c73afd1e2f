"""A bundle's samples: inputs, and the outputs that its graphs must give for them."""

from collections.abc import Callable, Iterable, Sequence
from io import BytesIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from export.contract.arrays import HEADER_LOCK
from export.contract.manifest import BundleError, Manifest
from export.contract.one_line import first_line

# N samples

Floats = NDArray[np.float32]

CPU_TOLERANCE = 1e-4  # by which an output may differ from its sample on a CPU, which computed the samples


def read_samples(content: bytes, manifest: Manifest) -> dict[str, Floats]:
    """The arrays of a bundle's samples by name, float32 [N, ...] each: what its graphs take and give.

    Args:
        content: of the file.
        manifest: says which arrays, and their shapes; `check_contract` has passed it.

    Raises:
        BundleError: it is not an archive of such arrays.
    """
    graphs = [graph for role, graph in manifest.graphs.items() if role != "explain"]
    shapes = {tensor.name: tensor.shape for graph in graphs for tensor in (*graph.inputs, *graph.outputs)}
    try:
        samples = _load_arrays(content, shapes)
    except Exception as error:  # errors of numpy, zipfile and zlib share no base class
        raise BundleError(f"samples: cannot be read: {first_line(error)}") from error
    for name, array in samples.items():
        # An empty batch is an error here, since ONNX Runtime 1.31 ends the process on one.
        if array.dtype != np.float32 or array.ndim == 0 or len(array) == 0:
            raise BundleError(
                f"samples: {name} is {array.dtype} {list(array.shape)}; every array must be float32 and hold "
                "at least one sample"
            )
        if array.shape[1:] != shapes[name][1:]:
            raise BundleError(
                f"samples: {name} has the shape {list(array.shape[1:])} in each sample; the manifest says "
                f"{list(shapes[name][1:])}"
            )
    return samples


def check_values(name: str, values: Floats, expected: Floats, device: str, tolerance: float) -> None:
    """Compare an output with its sample.

    Raises:
        BundleError: it has another shape, or differs by more than the tolerance.
    """
    if values.shape != expected.shape:
        raise BundleError(f"samples: {name} is {values.shape}, expected {expected.shape}")
    difference = float(np.abs(values - expected).max())
    if not difference <= tolerance:  # also when it is NaN
        raise BundleError(
            f"samples: {name} differs by {difference:.3g} on {device}; at most {tolerance:g} is allowed"
        )


def in_pieces(run: Callable[..., Sequence[Floats]], at_once: int, *arrays: Floats) -> list[Floats]:
    """What a graph gives for all examples, of which it takes a few at a time.

    Args:
        run: from arrays to the graph's outputs.
        at_once: examples.
        arrays: the inputs, [N, ...] each, N at least 1.
    """
    starts = range(0, len(arrays[0]), at_once)
    found = [run(*(array[start : start + at_once] for array in arrays)) for start in starts]
    return [np.concatenate(pieces) for pieces in zip(*found, strict=True)]


def _load_arrays(content: bytes, names: Iterable[str]) -> dict[str, Floats]:
    archive = np.load(BytesIO(content), allow_pickle=False)
    if not isinstance(archive, NpzFile):
        raise BundleError("one array and no archive of several")
    with archive, HEADER_LOCK:
        arrays = {name: archive[name] for name in names}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of what is not in its format
            raise BundleError(f"{name} is not an array")
    return arrays
