"""One graph as a session of ONNX Runtime: on the requested device or an error, never silently on another."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import onnxruntime as ort

from export.contract.manifest import BundleError, Graph, Tensor
from export.contract.one_line import first_line
from export.optimize.choice import cpu_options
from service.inference.arena import share_arena
from service.inference.gpu_session import GPU, GpuSession, open_gpu_session
from service.inference.mapped_weights import MappedSession, Weights
from service.inference.providers import (
    PROVIDERS,
    DeviceError,
    EngineOptions,
    Providers,
    UsedDevice,
    candidates,
    load_libraries,
    provider_list,
)

Session: TypeAlias = ort.InferenceSession | GpuSession


def check_device(options: EngineOptions) -> None:
    """Check that the requested device is available, by opening a graph of one node on it. Blocks.

    Raises:
        DeviceError: it is not.
    """
    devices = candidates(options.device, ort.get_available_providers(), options.precision)
    if "cpu" in devices:  # which is always available
        return
    from onnx import TensorProto, helper  # imported late: most services need no onnx

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
    made = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    opset = helper.make_opsetid("", 20)
    content = helper.make_model(made, opset_imports=[opset], ir_version=10).SerializeToString()
    graph = Graph(
        file="identity.onnx",
        sha256=hashlib.sha256(content).hexdigest(),
        inputs=(Tensor(name="x", shape=(None,)),),
        outputs=(Tensor(name="y", shape=(None,)),),
    )
    load_libraries("cuda")  # which TensorRT needs, too; its engine would take longer
    with GPU.shared():
        create_session(content, graph, "cuda", provider_list("cuda", graph, options), 1)


def open_session(
    content: bytes, graph: Graph, device: UsedDevice, options: EngineOptions, threads: int
) -> Session:
    """A session of the graph on this device and no other.

    Args:
        content: the graph.
        graph: what the manifest says of it.
        device: where it runs.
        options: precision, batch and cache.
        threads: that compute, on a CPU.

    Raises:
        BundleError: ONNX Runtime cannot read the graph, or its inputs and outputs are not the manifest's.
        DeviceError: the device, or memory on it, is not available.
    """

    def create(*, records: bool = False) -> ort.InferenceSession:
        providers = provider_list(device, graph, options, records=records)
        return create_session(content, graph, device, providers, threads)

    if device == "cpu":
        return create()
    load_libraries(device)
    return open_gpu_session(create, options.largest_batch(device), records=device == "cuda")


def create_session(
    content: bytes, graph: Graph, device: UsedDevice, providers: Providers, threads: int
) -> ort.InferenceSession:
    """A session with these providers, of which the first must be available.

    Raises:
        BundleError: ONNX Runtime cannot read the graph, or its inputs and outputs are not the manifest's.
        DeviceError: ONNX Runtime would have used another device.
    """
    options = cpu_options(threads)
    # The format that was checked; not the runtime's own, which it would detect by the first bytes.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    if device == "cpu":
        share_arena(options)
    try:
        # Without enable_fallback=0, after a run that fails on the device all runs would use the CPU.
        session = ort.InferenceSession(content, options, providers=providers, enable_fallback=0)
    except Exception as error:  # ONNX Runtime's errors share no base class
        if device != "cpu" and _can_be_read(content):
            raise DeviceError(f"device {device} cannot be used: {first_line(error)}") from error
        raise BundleError(f"{graph.file} cannot be loaded: {first_line(error)}") from error
    if session.get_providers()[0] != PROVIDERS[device]:
        raise DeviceError(
            f"device {device} cannot be used: ONNX Runtime chose {session.get_providers()[0]} for "
            f"{graph.file}; its messages above name the library or driver that is missing"
        )
    check_interface(session, graph)
    return session


def open_derived(
    file: Path, graph: Graph, threads: int, mapped: Callable[[Path], Weights]
) -> ort.InferenceSession:
    """A session of a derived graph on the CPU; its weights are in a file beside it.

    Args:
        file: the derived graph.
        graph: what the manifest says of the bundle's.
        threads: that compute.
        mapped: gives the weights of the file.

    Raises:
        BundleError: it cannot be read, or its inputs and outputs are not the manifest's.
    """
    options = cpu_options(threads, prepared=True)
    share_arena(options)
    try:
        session = MappedSession(file, options, mapped(file))
    except Exception as error:  # ONNX Runtime's errors share no base class
        raise BundleError(f"{file.name} cannot be loaded: {first_line(error)}") from error
    check_interface(session, graph)
    return session


def _can_be_read(content: bytes) -> bool:
    """Whether the graph loads on the CPU, which every machine has; if so, the device is at fault."""
    try:
        ort.InferenceSession(content, cpu_options(1), providers=[PROVIDERS["cpu"]])
    except Exception:  # ONNX Runtime's errors share no base class
        return False
    return True


def check_interface(session: ort.InferenceSession, graph: Graph) -> None:
    """The session has the inputs and outputs that the manifest lists.

    Raises:
        BundleError: it has others.
    """
    sides = (("input", session.get_inputs(), graph.inputs), ("output", session.get_outputs(), graph.outputs))
    for side, nodes, tensors in sides:
        found = [(n.name, n.type, tuple(d if isinstance(d, int) else None for d in n.shape)) for n in nodes]
        expected = [(t.name, "tensor(float)", t.shape) for t in tensors]
        if sorted(found, key=str) != sorted(expected, key=str):
            raise BundleError(f"{graph.file} has the {side}s {found}; the manifest says {expected}")
