"""From a bundle's folder to an engine: files read, sessions opened on the best device, samples checked."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.graph_file import check_self_contained
from export.contract.manifest import BundleError, Graph, Manifest, read_checked, read_manifest
from export.optimize.plan import MAX_WORKERS
from service.inference.checks import check_contract, check_half, check_samples
from service.inference.engine import Engine
from service.inference.half_encoder import halved
from service.inference.providers import DeviceError, EngineOptions, UsedDevice, candidates, usable_cpus
from service.inference.samples import read_samples
from service.inference.session_pool import open_on_cpu, pool_of_one
from service.inference.sessions import open_session

Floats = NDArray[np.float32]
Role = Literal["encoder", "decoder"]

log = logging.getLogger(__name__)


def load_engine(bundle: Path, model: str, options: EngineOptions) -> Engine:
    """Load a bundle, check it against its manifest and its samples, and warm it up with them.

    Args:
        bundle: its folder.
        model: the name it is served under, which must be its manifest's.
        options: where and how its graphs run.

    Raises:
        BundleError: the bundle is not what its manifest says, or cannot be served.
        DeviceError: an explicit device is not available.
    """
    manifest = _read_manifest_of(bundle, model)
    graphs = {role: _read_graph(bundle, graph) for role, graph in manifest.graphs.items()}
    samples = read_samples(read_checked(bundle, manifest.samples), decoder="decoder" in graphs)
    last_error: DeviceError | None = None
    for device in candidates(options.device, ort.get_available_providers(), options.precision):
        try:
            return _open_checked(graphs, samples, manifest, device, options)
        except DeviceError as error:
            if options.device != "auto":
                raise
            last_error = error
            log.warning("%s; trying the next best device", error)
    raise last_error or DeviceError("no device is available")  # the CPU is always among the candidates


def check_bundle(bundle: Path, model: str) -> Manifest:
    """Check a bundle's manifest and hashes without loading it; gives the manifest.

    Raises:
        BundleError: the bundle is not what its manifest says, or cannot be served.
    """
    manifest = _read_manifest_of(bundle, model)
    for graph in manifest.graphs.values():
        _read_graph(bundle, graph)
    read_checked(bundle, manifest.samples)
    return manifest


def _open_checked(
    graphs: Mapping[Role, bytes],
    samples: Mapping[str, Floats],
    manifest: Manifest,
    device: UsedDevice,
    options: EngineOptions,
) -> Engine:
    """An engine that passes the samples; without derived graphs if they are what fails."""
    try:
        return _checked(_open(graphs, manifest, device, options), graphs, samples)
    except BundleError as error:
        if device != "cpu" or not options.optimize:
            raise
        plain = _open(graphs, manifest, device, options._replace(optimize=False))
        engine = _checked(plain, graphs, samples)  # a fault of the bundle itself is raised here once more
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


def _open(
    graphs: Mapping[Role, bytes], manifest: Manifest, device: UsedDevice, options: EngineOptions
) -> Engine:
    """The sessions of a bundle's graphs: on a CPU one worker per core, up to MAX_WORKERS, else one."""
    threads = (options.threads or usable_cpus()) if device == "cpu" else 1
    workers = min(threads, MAX_WORKERS)
    share = threads // workers
    max_batch = options.largest_batch(device)
    content, graph = graphs["encoder"], manifest.graphs["encoder"]
    if device == "cpu":
        encoder_pool = open_on_cpu(content, graphs.get("decoder", b""), manifest, options, (threads, share))
    else:
        if options.precision == "half":
            content = halved(content, manifest)
        encoder_pool = pool_of_one(open_session(content, graph, device, options, threads))
    engine = Engine(manifest, device, max_batch, workers, encoder_pool, None, options.precision)
    if "decoder" not in graphs:
        return engine
    in_full = options._replace(precision="float32")
    try:
        decoder = open_session(graphs["decoder"], manifest.graphs["decoder"], device, in_full, share)
    except BaseException:
        engine.close()
        raise
    return replace(engine, decoder=decoder)


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
