"""From a bundle's folder to an engine: files read, sessions opened on the best device, samples checked."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from export.contract.graph_file import check_self_contained, check_weights_within
from export.contract.interface import check_contract
from export.contract.manifest import BundleError, Manifest, Role, read_checked, read_manifest
from export.contract.processors import usable_cpus
from export.contract.samples import read_samples
from export.optimize.plan import MAX_PARALLEL_BATCHES
from service.inference.checks import check_explainer, check_half, check_samples
from service.inference.engine import Engine
from service.inference.explain_session import ExplainSession
from service.inference.half_encoder import halved
from service.inference.providers import DeviceError, EngineOptions, UsedDevice, candidates
from service.inference.session_pool import open_on_cpu, pool_of_one
from service.inference.sessions import open_session

Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


def load_engine(bundle: Path, model: str, options: EngineOptions) -> Engine:
    """Load a bundle, check it against its manifest and its samples, and warm it up with them.

    Args:
        bundle: its folder.
        model: the name it is served under, which must be its manifest's.
        options: where and how its graphs run.

    Raises:
        BundleError: the bundle is not what its manifest says, or cannot be served.
        DeviceError: the requested device is not available.
    """
    manifest = _read_manifest_of(bundle, model)
    graphs = _read_graphs(bundle, manifest)
    samples = read_samples(read_checked(bundle, manifest.samples), manifest)
    devices = candidates(options.device, ort.get_available_providers(), options.precision)
    for device in devices:
        try:
            engine = _open_checked(graphs, samples, manifest, device, options)
        except DeviceError as error:
            if device == devices[-1]:
                raise
            log.warning("%s; trying the next best device", error)
        else:
            return _with_explainer(engine, bundle, graphs, samples, options)
    raise AssertionError("there is always a candidate")


def check_bundle(bundle: Path, model: str) -> Manifest:
    """Check a bundle's manifest and hashes without loading it; gives the manifest.

    Raises:
        BundleError: the bundle is not what its manifest says, or cannot be served.
    """
    manifest = _read_manifest_of(bundle, model)
    _read_graphs(bundle, manifest)
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
    """The sessions of a bundle's graphs: on a CPU one batch per core, up to MAX_PARALLEL_BATCHES."""
    threads = (options.threads or usable_cpus()) if device == "cpu" else 1
    parallel_batches = min(threads, MAX_PARALLEL_BATCHES)
    share = threads // parallel_batches
    decoder_max_batch = options.largest_batch(device)
    max_batch = options.largest_batch(device, manifest.architecture)
    options = options._replace(max_batch=max_batch)
    content, graph = graphs["encoder"], manifest.graphs["encoder"]
    if device == "cpu":
        encoder_pool = open_on_cpu(content, graphs.get("decoder", b""), manifest, options, (threads, share))
    else:
        if options.precision == "half":
            content = halved(content, manifest)
        encoder_pool = pool_of_one(open_session(content, graph, device, options, threads))
    engine = Engine(
        manifest,
        device,
        max_batch,
        decoder_max_batch,
        parallel_batches,
        encoder_pool,
        decoder=None,
        precision=options.precision,
    )
    if "decoder" not in graphs:
        return engine
    in_full = options._replace(precision="float32", max_batch=decoder_max_batch)
    try:
        decoder = open_session(graphs["decoder"], manifest.graphs["decoder"], device, in_full, share)
    except BaseException:
        engine.close()
        raise
    return replace(engine, decoder=decoder)


def _with_explainer(
    engine: Engine,
    bundle: Path,
    graphs: Mapping[Role, bytes],
    samples: Mapping[str, Floats],
    options: EngineOptions,
) -> Engine:
    """The engine with the explain graph, if there is one, which passes the samples."""
    if "explain" not in graphs:
        return engine
    threads = (options.threads or usable_cpus()) // MAX_PARALLEL_BATCHES or 1
    try:
        explainer = ExplainSession(bundle, engine.manifest, graphs["explain"], threads)
        check_explainer(explainer, graphs["encoder"], samples)
    except BaseException:
        engine.close()
        raise
    return replace(engine, explainer=explainer)


def _read_manifest_of(bundle: Path, model: str) -> Manifest:
    manifest = read_manifest(bundle)
    if manifest.model != model:
        raise BundleError(f"manifest: the model is {manifest.model}, but the folder is of {model}")
    check_contract(manifest)
    return manifest


def _read_graphs(bundle: Path, manifest: Manifest) -> dict[Role, bytes]:
    """The graphs' bytes; nothing in them reads other files, but for weights of the encoder's."""
    contents = {role: read_checked(bundle, graph) for role, graph in manifest.graphs.items()}
    for role, content in contents.items():
        file, lender = manifest.graphs[role].file, manifest.graphs["encoder"].file
        if role == "explain":
            check_weights_within(content, file, lender, len(contents["encoder"]))
        else:
            check_self_contained(content, file)
    return contents
