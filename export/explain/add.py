"""Add the explain graph to a bundle that is published, or about to be."""

# N samples, J classes, D numbers of a pose

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from export.contract.atomic_file import write_atomically
from export.contract.graph_file import check_self_contained
from export.contract.interface import check_contract
from export.contract.manifest import (
    MANIFEST_FILE,
    BundleError,
    Graph,
    Tensor,
    read_checked,
    read_manifest,
)
from export.contract.one_at_a_time import one_at_a_time
from export.contract.one_line import first_line
from export.contract.samples import read_samples
from export.explain.graph import explain_graph
from export.explain.shared_weights import share_weights
from export.optimize.sample_check import check_samples, faults_told, open_graph
from export.optimize.value_shape import shape_of

FILE = "explain.onnx"
LOCK = ".explain.lock"  # of who writes it
TOLERANCE = 1e-5  # by which the last iteration may differ from the encoder's answer
# Of the samples, 1, 3 and 4 at once: in matrix capsules the votes of many images would take gigabytes.
BATCHES = (slice(1), slice(3), slice(4), slice(4, 8))
SHARES = {"couplings", "assignments", "activations", "activities", "entropy"}  # outputs from 0 to 1


@dataclass(frozen=True)
class Added:
    """An explain graph that is in its bundle now.

    Attributes:
        path: of the graph.
        bytes: of its file, which holds none of the encoder's weights.
        error: the largest difference of the last iteration from the encoder's answer to the samples.
    """

    path: Path
    bytes: int
    error: float


class ExplainError(ValueError):
    """The last iteration of the explain graph differs from the encoder's answer."""


def add_explain(bundle: Path) -> Added:
    """Write the explain graph into a bundle's folder, and then the manifest that lists it.

    The bundle's other files stay as they are, and so do its digest and its answers. Both files are renamed
    into place, so that a service that looks meanwhile finds a bundle without the graph or one with it. Of a
    graph that is listed already, the file is written anew if it would be the same.

    Raises:
        BundleError: the bundle is not what its manifest says, its encoder cannot be explained, or it has
            another explain graph or another file of that name.
        ExplainError: the graph does not give the encoder's answer; nothing has been written.
        OSError: a file cannot be written.
    """
    manifest = read_manifest(bundle)
    check_contract(manifest)
    lent = manifest.graphs["encoder"]
    encoder = read_checked(bundle, lent)
    check_self_contained(encoder, lent.file)
    samples = read_samples(read_checked(bundle, manifest.samples), manifest)
    check_samples({"encoder": encoder}, manifest.architecture, samples)
    for role, file in (*manifest.graphs.items(), ("samples", manifest.samples)):
        if role != "explain" and file.file == FILE:
            raise BundleError(f"{bundle} cannot be explained: {FILE} is the file of its {role}")
    try:
        made = explain_graph(onnx.load_model_from_string(encoder), manifest)
    except Exception as fault:  # whatever is wrong with the files, of whoever made them
        reason = f"{type(fault).__name__}: {first_line(fault)}"
        raise BundleError(f"{bundle} cannot be explained: {reason}") from fault
    error = check_last_iteration(encoder, made.SerializeToString(), samples["pixels"])
    content = share_weights(made, encoder, lent.file).SerializeToString()
    described = _describe(content, made, lent)
    listed = manifest.graphs.get("explain", described)
    if (listed.file, listed.sha256) != (described.file, described.sha256):
        raise BundleError(
            f"{bundle} has an explain graph already, {listed.file}, which would not be the same today"
        )
    with one_at_a_time(bundle / LOCK):
        write_atomically(bundle / FILE, content)
        if "explain" not in manifest.graphs:
            changed = manifest.model_copy(update={"graphs": {**manifest.graphs, "explain": described}})
            # Facts that the manifest left to their defaults stay unsaid.
            text = changed.model_dump_json(indent=2, exclude_unset=True)
            write_atomically(bundle / MANIFEST_FILE, text + "\n")
    return Added(bundle / FILE, len(content), error)


def check_last_iteration(encoder: bytes, explain: bytes, pixels: NDArray[np.float32]) -> float:
    """Compare the last iteration with the encoder's answer, in batches of several sizes.

    Args:
        encoder: the graph.
        explain: the graph made of it, its weights in it.
        pixels: images, [N, H, W, C] in 0-1.

    Returns:
        The largest difference.

    Raises:
        BundleError: a graph cannot be run.
        ExplainError: it is more than TOLERANCE; says of which output.
    """
    largest = 0.0
    for name, found, expected in _last_iterations(encoder, explain, pixels):
        difference = float(np.abs(found - expected).max())
        if not difference <= TOLERANCE:  # also when it is NaN
            raise ExplainError(
                f"the last iteration's {name} differ by {difference:.2g} from the encoder's; at most "
                f"{TOLERANCE:g} is allowed"
            )
        largest = max(largest, difference)
    return largest


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
        described = Tensor(name=value.name, shape=shape_of(value), dtype="float32", range=between)
        outputs.append(known.get(value.name, described))
    return Graph(
        file=FILE,
        sha256=hashlib.sha256(content).hexdigest(),
        inputs=encoder.inputs,
        outputs=tuple(outputs),
    )
