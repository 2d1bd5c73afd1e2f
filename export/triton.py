"""A Triton Inference Server model repository made from a bundle. No torch here.

| folder | what it runs |
| --- | --- |
| `<model>` | the encoder: pixels to probabilities and poses |
| `<model>-mask` | probabilities to the mask that keeps the most probable class alone |
| `<model>-decoder` | the decoder: poses and mask to the reconstruction |
| `<model>-reconstruct` | an ensemble of them: pixels to probabilities, poses and reconstruction |
| `<model>-explain` | the explain graph: pixels to what routing does in every iteration |

The bundle's version is the version of all of them. Triton reads one configuration per model, whatever the
version, so every version of a model must take and give the same tensors. Graphs are served in all versions
that the repository holds. The ensemble is served in one, the newest, and names that version in each of its
steps: it never joins the encoder of one bundle with the decoder of another.

The exporter's graphs (opset 20, IR version 10) need ONNX Runtime 1.18, which is Triton 24.05, or later.
"""

# N images, J classes, D numbers of a pose

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from filelock import FileLock
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from export.contract.architecture import CPU_BATCH, GPU_MATRIX_BATCH
from export.contract.full_disk import naming
from export.contract.graph_file import check_self_contained, check_weights_within
from export.contract.interface import check_contract
from export.contract.manifest import (
    VERSION,
    BundleError,
    Graph,
    Manifest,
    Role,
    Tensor,
    read_checked,
    read_manifest,
)
from export.contract.samples import read_samples
from export.explain.shared_weights import hold_weights
from export.optimize.sample_check import check_samples
from export.optimize.value_shape import shape_of
from export.published import refuse_in_published
from export.triton_config import (
    LABELS,
    WRITTEN_BY,
    Batching,
    Device,
    Step,
    ensemble_config,
    graph_config,
    shared_part,
    with_device,
)

MAX_INT32 = 2**31 - 1
CONFIG = "config.pbtxt"
GRAPH = "model.onnx"  # the file of a version that the backend looks for


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are what its manifest says; `graphs` holds the bytes of each, by role."""

    version: int
    manifest: Manifest
    graphs: dict[Role, bytes]


@dataclass(frozen=True)
class Model:
    """A model of the repository: what stands in its folder, and what in its version's, if it has one."""

    name: str
    texts: dict[str, str]
    version_files: dict[str, bytes]


@dataclass(frozen=True)
class Written:
    """What has been written.

    Attributes:
        version: the bundle's, and that of every model.
        models: their names.
        ensemble_version: what the repository's ensemble runs; None for a bundle without a decoder.
    """

    version: int
    models: tuple[str, ...]
    ensemble_version: int | None


def write_repository(bundle: Path, out: Path, device: Device, max_batch: int) -> Written:
    """Write a bundle into a Triton model repository: a new one, or one that has other models or versions.

    What the repository holds of the same version must be the same graphs; then only configurations that
    differ are written. All is written aside first, and where anything fails the repository is as it was.

    Args:
        bundle: its folder `<model>/<version>`.
        out: the repository.
        device: where encoder, decoder and explain graph run.
        max_batch: images in one run, and in one request, at most.

    Raises:
        BundleError: the bundle is not what its manifest says, or `out` is in a published version.
        ValueError: `bundle` is no version's folder, or `out` holds something else of the same name.
    """
    refuse_in_published(out)
    if not 1 <= max_batch <= MAX_INT32:
        raise ValueError(f"max batch must be 1 to {MAX_INT32} images, got {max_batch}")
    out = out.resolve()
    checked = read_bundle(bundle)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the repository, because Triton takes every folder in it for a model, hidden ones too. A volume
    # has no beside: a rename out of it would be a copy.
    beside = out if out.is_mount() else out.parent
    with FileLock(beside / _lock(out), mode=0o666):  # it stays, so other users must be able to open it
        return _write_bundle(checked, out, beside, device, max_batch)


def _write_bundle(bundle: Bundle, out: Path, beside: Path, device: Device, max_batch: int) -> Written:
    """Write a bundle into a repository that nobody else writes into; what is unfinished stands beside it."""
    _check_repository(out)
    ensemble_version = _ensemble_version(bundle, out)
    models = describe_models(bundle, ensemble_version, device, max_batch)
    for model in models:
        _check_room(model, bundle.version, out)
    configured = [*models, *_explain_of_others(bundle, out, device, max_batch)]
    with naming(out), tempfile.TemporaryDirectory(prefix=".", suffix=".partial", dir=beside) as aside:
        for model in configured:
            _write_model(model, bundle.version, Path(aside))
        _place(configured, bundle.version, Path(aside), out)
    return Written(bundle.version, tuple(model.name for model in models), ensemble_version)


def _lock(out: Path) -> str:
    """The name of the file that is locked while a process writes into the repository."""
    return f".{out.name}.lock"


def read_bundle(path: Path) -> Bundle:
    """Read a bundle and check what the repository relies on.

    Raises:
        BundleError: a file or a field is not what it should be; says which, and how.
        ValueError: the folder's name is no version.
    """
    folder = Path(os.path.normpath(path.absolute())).name  # a link's own name, as the service takes it
    manifest = read_manifest(path)
    if not VERSION.fullmatch(folder):
        raise ValueError(f"{path} must be a bundle's folder <model>/<version>; {folder!r} is no version")
    check_contract(manifest)
    samples = read_checked(path, manifest.samples)
    graphs: dict[Role, bytes] = {}
    for role, graph in manifest.graphs.items():
        graphs[role] = read_checked(path, graph)
        if role != "explain":
            _check_graph(graphs[role], graph)
    if "explain" in graphs:  # as a Triton model it stands alone
        lender = manifest.graphs["encoder"].file
        check_weights_within(
            graphs["explain"], manifest.graphs["explain"].file, lender, len(graphs["encoder"])
        )
        graphs["explain"] = hold_weights(graphs["explain"], graphs["encoder"])
        _check_graph(graphs["explain"], manifest.graphs["explain"])
    check_samples(graphs, manifest.architecture, read_samples(samples, manifest))
    return Bundle(int(folder), manifest, graphs)


def describe_models(
    bundle: Bundle, ensemble_version: int | None, device: Device, max_batch: int
) -> list[Model]:
    """The models that a bundle makes, each after those that it needs.

    Args:
        bundle: without a decoder it makes neither mask, decoder nor ensemble.
        ensemble_version: the version that the ensemble runs.
        device: where encoder, decoder and explain graph run.
        max_batch: images in one run, at most.
    """
    name, graphs = bundle.manifest.model, bundle.manifest.graphs
    labels = {LABELS: _labels(bundle.manifest)}
    encoder = graphs["encoder"]
    batching = _batching(bundle, device, max_batch)
    config = graph_config(name, encoder.inputs, encoder.outputs, device, batching)
    models = [Model(name, {CONFIG: config, **labels}, {GRAPH: bundle.graphs["encoder"]})]
    if "explain" in graphs:
        explain = graphs["explain"]
        config = graph_config(f"{name}-explain", explain.inputs, explain.outputs, device, batching)
        models.append(Model(f"{name}-explain", {CONFIG: config, **labels}, {GRAPH: bundle.graphs["explain"]}))
    if "decoder" not in graphs or ensemble_version is None:
        return models

    decoder = graphs["decoder"]
    probabilities, mask = _named("probabilities", encoder.outputs), _named("mask", decoder.inputs)
    steps: list[Step] = [
        (name, encoder.inputs, encoder.outputs),
        (f"{name}-mask", [probabilities], [mask]),
        (f"{name}-decoder", decoder.inputs, decoder.outputs),
    ]
    # The mask stays on the CPU, where equal probabilities give the first class, as in the service; CUDA
    # does not promise which.
    all_waiting = Batching(max_batch, max_batch)
    config = graph_config(*steps[1], "cpu", all_waiting)
    models.append(Model(steps[1][0], {CONFIG: config}, {GRAPH: mask_graph(bundle)}))
    config = graph_config(*steps[2], device, all_waiting)
    models.append(Model(steps[2][0], {CONFIG: config}, {GRAPH: bundle.graphs["decoder"]}))
    outputs = [*encoder.outputs, *decoder.outputs]
    ensemble = f"{name}-reconstruct"
    config = ensemble_config(ensemble, encoder.inputs, outputs, steps, ensemble_version, max_batch)
    # Triton needs the ensemble's version folder, too, and git and object stores keep none that is empty.
    models.append(Model(ensemble, {CONFIG: config, **labels}, {".keep": b""}))
    return models


def mask_graph(bundle: Bundle) -> bytes:
    """A graph from probabilities [N, J] to the mask [N, J]: 1 at the most probable, the first of equals.

    Opset and IR version are the encoder's: what runs one runs the other.
    """
    classes = len(bundle.manifest.class_names)
    encoder = onnx.load_model_from_string(bundle.graphs["encoder"])
    nodes = [
        helper.make_node("ArgMax", ["probabilities"], ["winner"], axis=1, keepdims=0, select_last_index=0),
        helper.make_node("OneHot", ["winner", "classes", "off_on"], ["mask"], axis=-1),
    ]
    constants = [
        numpy_helper.from_array(np.array([classes]), "classes"),
        numpy_helper.from_array(np.array([0, 1], np.float32), "off_on"),
    ]
    probabilities, mask = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", classes])
        for name in ("probabilities", "mask")
    )
    graph = helper.make_graph(nodes, "mask", [probabilities], [mask], constants)
    model = helper.make_model(graph, opset_imports=encoder.opset_import, ir_version=encoder.ir_version)
    model.producer_name = "capsnet-export"
    return model.SerializeToString(deterministic=True)


def _check_graph(content: bytes, graph: Graph) -> None:
    """The file is an ONNX graph with the manifest's inputs and outputs, and all its weights are in it."""
    check_self_contained(content, graph.file)
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise BundleError(f"{graph.file} is no ONNX graph: {error}") from None
    sides = (("inputs", model.graph.input, graph.inputs), ("outputs", model.graph.output, graph.outputs))
    for side, values, tensors in sides:
        found = {value.name: (value.type.tensor_type.elem_type, shape_of(value)) for value in values}
        if found != {tensor.name: (TensorProto.FLOAT, tensor.shape) for tensor in tensors}:
            shapes = {name: shape for name, (_, shape) in found.items()}
            expected = {tensor.name: tensor.shape for tensor in tensors}
            raise BundleError(
                f"{graph.file} has the {side} {shapes}; the manifest says {expected}, all float32"
            )


def _named(name: str, tensors: Iterable[Tensor]) -> Tensor:
    return next(tensor for tensor in tensors if tensor.name == name)


def _labels(manifest: Manifest) -> str:
    """A class name per line, in the order of the probabilities."""
    for name in manifest.class_names:
        if len(name.splitlines()) != 1:
            raise BundleError(f"manifest: class name {name!r} must be one line to stand in {LABELS}")
    return "".join(f"{name}\n" for name in manifest.class_names)


def _check_repository(out: Path) -> None:
    """The repository is new, empty, or one of Triton's."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file; expected the folder of a model repository")
    holds = {path.name for path in out.iterdir()} - {"lost+found", _lock(out)}  # volumes come with the first
    if holds and not any(out.glob(f"*/{CONFIG}")):
        raise ValueError(
            f"{out} is not empty and no Triton model repository (it has no <model>/{CONFIG}); "
            "give a new or an empty folder"
        )


def _ensemble_version(bundle: Bundle, out: Path) -> int | None:
    """The newest version, the bundle's or one that the repository holds; None without a decoder."""
    folder = out / f"{bundle.manifest.model}-reconstruct"
    held = [int(path.name) for path in folder.glob("*") if VERSION.fullmatch(path.name)]
    if "decoder" in bundle.graphs:
        return max([bundle.version, *held])
    if held:  # its ensemble would need the encoder's old configuration
        raise ValueError(
            f"version {bundle.version} has no decoder, but {folder} holds versions that have one; "
            "give another --out"
        )
    return None


def _explain_of_others(bundle: Bundle, out: Path, device: Device, max_batch: int) -> list[Model]:
    """The explain model that other versions have and the bundle lacks: its configuration, for all of them."""
    name = f"{bundle.manifest.model}-explain"
    held = _read(out / name / CONFIG)
    if "explain" in bundle.graphs or not held.startswith(WRITTEN_BY):
        return []
    return [Model(name, {CONFIG: with_device(held, device, _batching(bundle, device, max_batch))}, {})]


def _batching(bundle: Bundle, device: Device, max_batch: int) -> Batching:
    """Of encoder and explain graph: of matrix capsules, whose votes are large, few requests are gathered."""
    if bundle.manifest.architecture != "matrix-capsnet":
        return Batching(max_batch, max_batch)
    gathered = GPU_MATRIX_BATCH if device == "gpu" else CPU_BATCH["matrix-capsnet"]
    return Batching(max_batch, min(max_batch, gathered))


def _check_room(model: Model, version: int, out: Path) -> None:
    """What the repository holds of the model is ours, alike, and the same where it is the same version."""
    folder = out / model.name
    if not folder.exists():
        return
    held = {name: _read(folder / name) for name in model.texts}
    if not held[CONFIG].startswith(WRITTEN_BY):
        raise ValueError(f"{folder} was not written by capsnet-export triton; give another --out")
    alike = shared_part(held[CONFIG]) == shared_part(model.texts[CONFIG])
    if not alike or held.get(LABELS) != model.texts.get(LABELS):
        raise ValueError(
            f"{folder} is configured for other tensors or class names than those of version {version}, and "
            "Triton has one configuration for all versions of a model; give another --out"
        )
    for name, content in model.version_files.items():
        file = folder / str(version) / name
        if file.parent.exists() and (not file.is_file() or file.read_bytes() != content):
            raise ValueError(
                f"{file} is not what the bundle makes of it; a version never changes: "
                "export the model as another version, or give another --out"
            )


def _read(path: Path) -> str:
    """The text of a file; none where there is no such file."""
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _write_model(model: Model, version: int, repository: Path) -> None:
    folder = repository / model.name
    folder.mkdir()
    for name, text in model.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    if model.version_files:
        (folder / str(version)).mkdir()
    for name, content in model.version_files.items():
        (folder / str(version) / name).write_bytes(content)


def _place(models: Iterable[Model], version: int, aside: Path, out: Path) -> None:
    """Move what was written aside into the repository; where that fails, take everything back.

    A Triton that polls meanwhile finds nothing half done: each move is one rename, a model follows those it
    needs, and a configuration that names a version follows the version.
    """
    with ExitStack() as undo:
        if not out.exists():
            out.mkdir()
            undo.callback(out.rmdir)
        for model in models:
            part = Path(model.name)
            if (out / part).exists():
                part /= str(version)
            if (aside / part).exists() and not (out / part).exists():
                (aside / part).rename(out / part)
                undo.callback(shutil.rmtree, out / part)
        for model in models:
            new, config = aside / model.name / CONFIG, out / model.name / CONFIG
            # A configuration that is written makes Triton load the model again, so the same one is not.
            if new.exists() and new.read_bytes() != config.read_bytes():
                undo.callback(config.write_bytes, config.read_bytes())
                new.replace(config)
        undo.pop_all()
