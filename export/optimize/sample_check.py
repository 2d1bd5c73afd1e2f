"""A bundle's own graphs are run on its samples before others are made of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import onnxruntime as ort

from export.contract.architecture import CPU_BATCH
from export.contract.manifest import Architecture, BundleError, Role
from export.contract.one_line import first_line
from export.contract.samples import CPU_TOLERANCE, Floats, check_values, in_pieces
from export.optimize.choice import cpu_options

TENSORS: dict[Role, tuple[list[str], list[str]]] = {
    "encoder": (["pixels"], ["probabilities", "poses"]),
    "decoder": (["poses", "mask"], ["reconstruction"]),
}


def check_samples(
    graphs: Mapping[Role, bytes], architecture: Architecture, samples: Mapping[str, Floats]
) -> None:
    """The graphs give what the samples say, on the CPU, as when the service loads the bundle.

    Args:
        graphs: the encoder, and maybe the decoder; nothing in them reads other files.
        architecture: of the network; says how many samples the encoder takes at once.
        samples: as `read_samples` gives them.

    Raises:
        BundleError: a graph cannot be run, or an output differs; names it.
    """
    for role, (inputs, outputs) in TENSORS.items():
        if role not in graphs:
            continue
        with faults_told(role):
            session = open_graph(graphs[role])
            run = partial(_run, session, inputs, outputs)
            at_once = CPU_BATCH[architecture if role == "encoder" else "capsnet"]
            found = in_pieces(run, at_once, *(samples[name] for name in inputs))
        for name, values in zip(outputs, found, strict=True):
            check_values(name, values, samples[name], "cpu", CPU_TOLERANCE)


def _run(
    session: ort.InferenceSession, inputs: list[str], outputs: list[str], *arrays: Floats
) -> list[Floats]:
    found: list[Floats] = session.run(outputs, dict(zip(inputs, arrays, strict=True)))
    return found


def open_graph(content: bytes) -> ort.InferenceSession:
    """A session on the CPU, which writes nothing to standard error."""
    return ort.InferenceSession(content, cpu_options(threads=0), providers=["CPUExecutionProvider"])


@contextmanager
def faults_told(graph: str) -> Iterator[None]:
    """Whatever ONNX Runtime finds wrong with a graph is told in one line.

    Raises:
        BundleError: something is.
    """
    try:
        yield
    except Exception as fault:  # of whoever made the graph; ONNX Runtime's errors share no base class
        raise BundleError(f"the {graph} cannot be run: {first_line(fault)}") from fault
