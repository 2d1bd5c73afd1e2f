"""The graphs of one bundle in ONNX Runtime: the device asked for or an error, checked before use."""

import functools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.graph_file import check_self_contained
from export.contract.manifest import BundleError, Graph, Manifest, read_checked, read_manifest
from export.optimize.choice import cpu_options
from export.optimize.plan import MAX_LANES, Form
from service.inference.arena import share_arena, shrink_arena
from service.inference.gpu_session import GpuSession, open_gpu_session
from service.inference.graph_cache import fast_graphs
from service.inference.half_encoder import check_classes, halved
from service.inference.mapped_weights import MappedSession, Weights, map_weights
from service.inference.providers import (
    PROVIDERS,
    DeviceError,
    Placement,
    Providers,
    UsedDevice,
    candidates,
    provider_list,
    sample_tolerances,
    usable_cpus,
)
from service.inference.samples import first_line, read_samples
from service.inference.session_pool import Encoders, Session, one_for_all, open_by_size
from service.settings import Precision

# N images, H rows, W columns, C channels, J classes, D numbers of a pose

Floats = NDArray[np.float32]
Role = Literal["encoder", "decoder"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Engine:
    """A loaded bundle. `encode` and `decode` block.

    Attributes:
        device: the one in use.
        max_batch: images per run, at most.
        lanes: how many threads may call at the same time.
        encoders: of which each batch has its own.
        precision: of the encoder's products.
    """

    manifest: Manifest
    device: UsedDevice
    max_batch: int
    lanes: int
    encoders: Encoders
    decoder: Session | None
    precision: Precision = "float32"

    def encode(self, pixels: Floats, *, alone: bool = True) -> tuple[Floats, Floats]:
        """Pixels [N, H, W, C] in 0-1 to probabilities [N, J] and poses [N, J, D].

        Args:
            pixels: at most `max_batch` images.
            alone: whether all cores are its own.
        """
        session = self.encoders.session(len(pixels), alone=alone)
        probabilities, poses = session.run(["probabilities", "poses"], {"pixels": pixels})
        return probabilities, poses

    def decode(self, poses: Floats, mask: Floats, *, alone: bool = True) -> tuple[Floats]:
        """Poses [N, J, D] and one-hot mask [N, J] to pictures [N, H, W, C] in 0-1.

        Alone or not, one lane's share of the cores is enough for it.

        Raises:
            RuntimeError: the bundle has no decoder; ask `has_decoder` first.
        """
        if self.decoder is None:
            raise RuntimeError(f"{self.manifest.model} has no decoder")
        (reconstruction,) = self.decoder.run(["reconstruction"], {"poses": poses, "mask": mask})
        return (reconstruction,)

    def give_back(self) -> None:
        """Free the scratch memory that engines on the CPU share. Blocks, for a run of one image."""
        for session in (self.decoder, *self.encoders.all):  # the decoder's takes less
            if isinstance(session, ort.InferenceSession):
                shrink_arena(session)
                return

    def close(self) -> None:
        """Free what its graphs hold; nobody calls `encode` or `decode` any more. Blocks like `give_back`."""
        self.give_back()
        for session in (*self.encoders.all, self.decoder):
            if isinstance(session, GpuSession):
                session.close()

    @property
    def provider(self) -> str:
        """ONNX Runtime's execution provider."""
        return str(self.encoders.beside.sessions[-1].get_providers()[0])

    @property
    def has_decoder(self) -> bool:
        """Whether `decode` can be called."""
        return self.decoder is not None


def load_engine(bundle: Path, model: str, placement: Placement) -> Engine:
    """Load a bundle, check it against its manifest and its samples, and warm it up with them.

    Args:
        bundle: its folder.
        model: the name it is served under, which must be its manifest's.
        placement: where its graphs run.

    Raises:
        BundleError: the bundle is not what its manifest says, or cannot be served.
        DeviceError: an explicit device cannot be had.
    """
    manifest = _read_manifest_of(bundle, model)
    graphs = {role: _read_graph(bundle, graph) for role, graph in manifest.graphs.items()}
    samples = read_samples(read_checked(bundle, manifest.samples), decoder="decoder" in graphs)
    last_error: DeviceError | None = None
    for device in candidates(placement.device, ort.get_available_providers(), placement.precision):
        try:
            return _open_checked(graphs, samples, manifest, device, placement)
        except DeviceError as error:
            if placement.device != "auto":
                raise
            last_error = error
            log.warning("%s; trying the next best device", error)
    raise last_error or DeviceError("no device is available")  # the CPU is always among the candidates


def _open_checked(
    graphs: Mapping[Role, bytes],
    samples: Mapping[str, Floats],
    manifest: Manifest,
    device: UsedDevice,
    placement: Placement,
) -> Engine:
    """An engine that passes the samples; without derived graphs if it is they that do not."""
    try:
        return _checked(_open(graphs, manifest, device, placement), graphs, samples)
    except BundleError as error:
        if device != "cpu" or not placement.optimize:
            raise
        plain = _open(graphs, manifest, device, placement._replace(optimize=False))
        engine = _checked(plain, graphs, samples)  # what is the bundle's own fault is raised here once more
        log.warning("the faster graphs are not used: %s", error)
    return engine


def _checked(engine: Engine, graphs: Mapping[Role, bytes], samples: Mapping[str, Floats]) -> Engine:
    try:
        check_samples(engine, samples)
        check_half(engine, graphs["encoder"], samples["pixels"])
    except BaseException:
        engine.close()
        raise
    return engine


def check_bundle(bundle: Path, model: str) -> None:
    """Check a bundle's manifest and hashes without loading it.

    Raises:
        BundleError: the bundle is not what its manifest says, or cannot be served.
    """
    manifest = _read_manifest_of(bundle, model)
    for graph in manifest.graphs.values():
        _read_graph(bundle, graph)
    read_checked(bundle, manifest.samples)


def _open(
    graphs: Mapping[Role, bytes], manifest: Manifest, device: UsedDevice, placement: Placement
) -> Engine:
    """The sessions of a bundle's graphs: on a CPU a lane for every core up to MAX_LANES, else one."""
    threads = (placement.threads or usable_cpus()) if device == "cpu" else 1
    lanes = min(threads, MAX_LANES)
    share = threads // lanes
    max_batch = placement.largest_batch(device)
    content, graph = graphs["encoder"], manifest.graphs["encoder"]
    if device == "cpu":
        encoders = _open_on_cpu(content, graphs.get("decoder", b""), graph, placement, (threads, share))
    else:
        if placement.precision == "half":
            content = halved(content, graph)
        encoders = one_for_all(open_session(content, graph, device, placement, threads))
    engine = Engine(manifest, device, max_batch, lanes, encoders, None, placement.precision)
    if "decoder" not in graphs:
        return engine
    in_full = placement._replace(precision="float32")
    try:
        decoder = open_session(graphs["decoder"], manifest.graphs["decoder"], device, in_full, share)
    except BaseException:
        engine.close()
        raise
    return replace(engine, decoder=decoder)


def _open_on_cpu(
    content: bytes, decoder: bytes, graph: Graph, placement: Placement, threads: tuple[int, int]
) -> Encoders:
    """Sessions of the graphs that are fastest here: all threads for a batch alone, a share beside others."""
    cache = placement.cache if placement.optimize else None
    alone_threads, share = threads
    mapped = functools.cache(map_weights)
    with fast_graphs(content, graph, cache, threads, decoder) as (plan, folder):

        def opened(form: Form, threads: int) -> Session:
            if form == "plain":
                return open_session(content, graph, "cpu", placement, threads)
            return open_derived(folder / f"{form}.onnx", graph, threads, mapped)

        beside = open_by_size(plan.beside, partial(opened, threads=share))
        if share == alone_threads:
            return Encoders(beside, beside, plan, folder)
        alone = open_by_size(plan.alone, partial(opened, threads=alone_threads))
    return Encoders(alone, beside, plan, folder)


def open_session(
    content: bytes, graph: Graph, device: UsedDevice, placement: Placement, threads: int
) -> Session:
    """A session of the graph on the device and no other, with so many threads on the CPU.

    Raises:
        BundleError: ONNX Runtime cannot read the graph, or its inputs and outputs are not the manifest's.
        DeviceError: the device, or memory on it, cannot be had.
    """

    def create(*, records: bool = False) -> ort.InferenceSession:
        providers = provider_list(device, graph, placement, records=records)
        return _create_session(content, graph, device, providers, threads)

    if device == "cpu":
        return create()
    ort.preload_dlls()  # finds the CUDA and cuDNN libraries that pip installs beside Python packages
    return open_gpu_session(create, placement.largest_batch(device), records=device == "cuda")


def _create_session(
    content: bytes, graph: Graph, device: UsedDevice, providers: Providers, threads: int
) -> ort.InferenceSession:
    """A session with these providers, of which the first has to be had.

    Raises:
        BundleError: ONNX Runtime cannot read the graph, or its inputs and outputs are not the manifest's.
        DeviceError: ONNX Runtime would have used another device.
    """
    options = cpu_options(threads)
    # The format that was checked, and not the runtime's own, which it would tell by the first bytes.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    if device == "cpu":
        share_arena(options)
    try:
        # Without enable_fallback=0 a run that fails on the device goes on on the CPU, and stays there.
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
    _check_interface(session, graph)
    return session


def open_derived(
    file: Path, graph: Graph, threads: int, mapped: Callable[[Path], Weights] = map_weights
) -> ort.InferenceSession:
    """A session of a graph derived from a bundle's, on the CPU; its weights lie beside it.

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
    _check_interface(session, graph)
    return session


def _can_be_read(content: bytes) -> bool:
    """Whether the graph is one; a CPU, which every machine has, tells what is wrong with it or the device."""
    try:
        ort.InferenceSession(content, cpu_options(1), providers=[PROVIDERS["cpu"]])
    except Exception:  # ONNX Runtime's errors share no base class
        return False
    return True


def check_contract(manifest: Manifest) -> None:
    """The manifest describes graphs that this service can run.

    Raises:
        BundleError: it describes others; names the graph and the tensor.
    """
    facts, classes = manifest.preprocessing, len(manifest.class_names)
    picture = (None, facts.height, facts.width, facts.channels)
    poses = (None, classes, math.prod(manifest.pose_shape))
    expected: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
        "encoder": ({"pixels": picture}, {"probabilities": (None, classes), "poses": poses}),
        "decoder": ({"poses": poses, "mask": (None, classes)}, {"reconstruction": picture}),
    }
    for role, graph in manifest.graphs.items():
        found = tuple({t.name: t.shape for t in tensors} for tensors in (graph.inputs, graph.outputs))
        if found != expected[role]:
            raise BundleError(
                f"manifest: the {role} has {found}; with these classes it needs {expected[role]}"
            )


def check_samples(engine: Engine, samples: Mapping[str, Floats]) -> None:
    """Run the bundle's samples; this warms the engine up, too.

    Raises:
        BundleError: an output is not what samples.npz says; names it, and the largest difference.
    """
    tolerances = sample_tolerances(engine.device, engine.precision)
    names, pixels = ["probabilities", "poses"], {"pixels": samples["pixels"]}
    try:
        found = [
            named
            for encoder in engine.encoders.all
            for named in zip(names, encoder.run(names, pixels), strict=True)
        ]
        if engine.has_decoder:
            found += zip(["reconstruction"], engine.decode(samples["poses"], samples["mask"]), strict=True)
    except Exception as error:  # ONNX Runtime's errors share no base class
        raise BundleError(f"samples: the graphs fail on them: {first_line(error)}") from error
    for name, values in found:
        _check_values(name, values, samples[name], engine.device, tolerances[name])


def check_half(engine: Engine, encoder: bytes, pixels: Floats) -> None:
    """An encoder in half precision names the classes that the plain one does.

    Args:
        engine: that was opened with the encoder.
        encoder: the plain graph.
        pixels: of the samples, [N, H, W, C].

    Raises:
        BundleError: on an image made of the samples it does not.
    """
    if engine.precision != "half":
        return
    manifest, on_cpu = engine.manifest, [(PROVIDERS["cpu"], dict[str, str]())]
    plain = _create_session(encoder, manifest.graphs["encoder"], "cpu", on_cpu, usable_cpus())
    check_classes(
        lambda images: engine.encode(images)[0],
        lambda images: plain.run(["probabilities"], {"pixels": images})[0],
        pixels,
        manifest.objects_per_image,
        engine.max_batch,
    )


def _check_values(name: str, values: Floats, expected: Floats, device: UsedDevice, tolerance: float) -> None:
    if values.shape != expected.shape:
        raise BundleError(f"samples: {name} is {values.shape}, expected {expected.shape}")
    difference = float(np.abs(values - expected).max())
    if not difference <= tolerance:  # also when it is NaN
        raise BundleError(
            f"samples: {name} differs by {difference:.3g} on {device}; at most {tolerance:g} is allowed"
        )


def _read_manifest_of(bundle: Path, model: str) -> Manifest:
    manifest = read_manifest(bundle)
    if manifest.model != model:
        raise BundleError(f"manifest: the model is {manifest.model}, but the folder is of {model}")
    check_contract(manifest)
    return manifest


def _read_graph(bundle: Path, graph: Graph) -> bytes:
    content = read_checked(bundle, graph)
    check_self_contained(content, graph.file)
    return content


def _check_interface(session: ort.InferenceSession, graph: Graph) -> None:
    sides = (("input", session.get_inputs(), graph.inputs), ("output", session.get_outputs(), graph.outputs))
    for side, nodes, tensors in sides:
        found = [(n.name, n.type, tuple(d if isinstance(d, int) else None for d in n.shape)) for n in nodes]
        expected = [(t.name, "tensor(float)", t.shape) for t in tensors]
        if sorted(found, key=str) != sorted(expected, key=str):
            raise BundleError(f"{graph.file} has the {side}s {found}; the manifest says {expected}")
