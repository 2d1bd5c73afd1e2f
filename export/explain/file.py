"""The file of an explain graph: made of a bundle's encoder, checked against its answers, described."""

# N samples, J classes, D numbers of a pose

import hashlib
from collections.abc import Iterator

import numpy as np
import onnx
from numpy.typing import NDArray

from export.contract.manifest import Graph, Manifest, Tensor
from export.contract.one_line import first_line
from export.explain.graph import explain_graph
from export.explain.shared_weights import share_weights
from export.optimize.sample_check import faults_told, open_graph
from export.optimize.value_shape import shape_of

FILE = "explain.onnx"
TOLERANCE = 1e-5  # by which the last iteration may differ from the encoder's answer
# Of the samples, 1, 3 and 4 at once: in matrix capsules the votes of many images would take gigabytes.
BATCHES = (slice(1), slice(3), slice(4), slice(4, 8))
SHARES = {"couplings", "assignments", "activations", "activities", "entropy"}  # outputs from 0 to 1


class ExplainError(ValueError):
    """The explain graph cannot be made, or its last iteration differs from the encoder's answer."""


def explain_file(encoder: bytes, manifest: Manifest, pixels: NDArray[np.float32]) -> tuple[bytes, Graph]:
    """Make the explain graph, which reads its weights from the encoder's file, and check it.

    Args:
        encoder: the bytes of the encoder's file.
        manifest: of the bundle, which need not list FILE yet.
        pixels: images to check the graph with, [N, H, W, C] in 0-1.

    Returns:
        The bytes of FILE, and what the manifest says of it.

    Raises:
        ExplainError: the graph cannot be made, or does not give the encoder's answer.
        BundleError: the encoder or the graph cannot be run.
    """
    try:
        made = explain_graph(onnx.load_model_from_string(encoder), manifest)
    except Exception as fault:  # of onnx as well, whose errors share no base class
        reason = f"{type(fault).__name__}: {first_line(fault)}"
        raise ExplainError(f"the explain graph cannot be made: {reason}") from fault
    check_last_iteration(encoder, made.SerializeToString(), pixels)
    lent = manifest.graphs["encoder"]
    content = share_weights(made, encoder, lent.file).SerializeToString()
    return content, _describe(content, made, lent)


def check_last_iteration(encoder: bytes, explain: bytes, pixels: NDArray[np.float32]) -> None:
    """Compare the last iteration with the encoder's answer, in batches of several sizes.

    Args:
        encoder: the graph.
        explain: the graph made of it, its weights in it.
        pixels: images, [N, H, W, C] in 0-1.

    Raises:
        BundleError: a graph cannot be run.
        ExplainError: they differ by more than TOLERANCE; says in which output.
    """
    for name, found, expected in _last_iterations(encoder, explain, pixels):
        difference = float(np.abs(found - expected).max())
        if not difference <= TOLERANCE:  # also when it is NaN
            raise ExplainError(
                f"the last iteration's {name} differ by {difference:.2g} from the encoder's; at most "
                f"{TOLERANCE:g} is allowed"
            )


def _last_iterations(
    encoder: bytes, explain: bytes, pixels: NDArray[np.float32]
) -> Iterator[tuple[str, NDArray[np.float32], NDArray[np.float32]]]:
    """Name of the encoder's output, the explain graph's last iteration of it, and the encoder's."""
    with faults_told("explain graph"):
        of_encoder, of_explain = open_graph(encoder), open_graph(explain)
    names = ["probabilities", "poses"]
    for some in BATCHES:
        feeds = {"pixels": pixels[some]}
        if not len(feeds["pixels"]):
            continue
        with faults_told("explain graph"):
            probabilities, poses = of_encoder.run(names, feeds)
            last = of_explain.run([*names, "activations", "capsules"], feeds)
        yield "probabilities", last[0], probabilities
        yield "poses", last[1], poses
        yield "probabilities", last[2][:, -1], probabilities
        yield "poses", last[3][:, -1], poses


def _describe(content: bytes, model: onnx.ModelProto, encoder: Graph) -> Graph:
    """The graph as the manifest lists it, of which the encoder knows inputs and outputs already."""
    known = {tensor.name: tensor for tensor in encoder.outputs}
    ranges = {"capsules": known["poses"].range}
    outputs = []
    for value in model.graph.output:
        is_share = value.name.rpartition(".")[2] in SHARES
        between = (0.0, 1.0) if is_share else ranges.get(value.name)
        described = Tensor(name=value.name, shape=shape_of(value), range=between)
        outputs.append(known.get(value.name, described))
    return Graph(
        file=FILE,
        sha256=hashlib.sha256(content).hexdigest(),
        inputs=encoder.inputs,
        outputs=tuple(outputs),
    )
