"""Publish a run as the next version of a bundle: graphs, samples, manifest, model card; all or nothing."""

# N samples, J classes, D class pose, C channels, H and W height and width

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from export import parity
from export.confidence import measure_confidence
from export.contract.architecture import CPU_BATCH
from export.contract.interface import check_contract
from export.contract.manifest import (
    MANIFEST_FILE,
    VERSION,
    Architecture,
    BundleError,
    Confidence,
    File,
    Graph,
    Manifest,
    Metric,
    Parity,
    Preprocessing,
    Tensor,
    model_name,
    read_manifest,
    sha256_of,
)
from export.contract.samples import in_pieces
from export.contract.writable import check_writable
from export.evaluate import evaluate_encoder
from export.explain.file import explain_file
from export.fold import fold_coupling, weight_factors
from export.graph import CapsuleNetwork, pose_shape
from export.model_card import CARD_FILE, model_card
from export.next_version import publish_next, versions
from export.optimize.value_shape import shape_of
from export.published import refuse_in_published
from export.to_onnx import OPSET, Graphs, trace
from training.config import DataConfig, RunConfig, to_dict
from training.data.batches import Batches
from training.data.run_images import training_batches
from training.data.synthetic.drawn_digits import draw_digits
from training.evaluate.metrics import Errors
from training.models.build import Network
from training.runs import checkpoint
from training.runs.open_run import open_run
from training.runs.result import MEASURED, note_measurement, times_measured

SAMPLES = 8
SAMPLES_FILE = "samples.npz"
SAMPLES_SEED = 8
PROBABILITY = (0.0, 1.0)
PIXEL = (0.0, 1.0)
# Of a pose's elements: a CapsNet's capsule is shorter than 1, a matrix has no bound.
POSE = {"capsnet": (-1.0, 1.0), "matrix-capsnet": None}
PARALLAX = 1 / 12  # of a sample's views, in image widths


@dataclass(frozen=True)
class Publication:
    """A bundle that has been published."""

    path: Path
    parity_error: float
    test: Errors


@dataclass(frozen=True)
class Exported:
    """A run's best checkpoint as graphs, and their measurements.

    Attributes:
        config: of the run.
        progress: of the checkpoint.
        model: its network.
        graphs: made of the network.
        crop_share: the fraction of a picture's side that the network was shown, 0 to 1.
        parity_error: largest difference between network and graphs on images, held out if any are.
        confidence: the probability from which its answers are confident; None if nothing was held out.
        test: errors of the encoder's graph on the test images.
        times_measured: how often the run had been measured on the test images before.
    """

    config: RunConfig
    progress: checkpoint.Progress
    model: CapsuleNetwork
    graphs: Graphs
    crop_share: float
    parity_error: float
    confidence: Confidence | None
    test: Errors
    times_measured: int


def publish(
    run: Path, out: Path, root: Path, images: Path | None = None, remark: str | None = None
) -> Publication:
    """Export a run's best checkpoint and publish it as the next version under `out`.

    Args:
        run: a run of capsnet-train.
        out: the model's folder, `models/NAME`; its last part is the model's name.
        root: holds one folder per data set.
        images: folder of the user's own pictures that it was trained on; None: where they were in training.
        remark: for the end of the model card: what the run cannot know.

    Raises:
        ParityError: PyTorch and ONNX Runtime disagree; nothing is published.
        ExplainError: the explain graph cannot be made, or gives another answer than the encoder; nothing is
            published.
        ValueError: `out` is not a model name, or is a version or a folder of models; the run is not one, or
            one on crops that a service does not show.
        FileNotFoundError: the run has no checkpoint, or the data set is missing.
        OSError: the run, which counts its measurements, or `out` cannot be written.
    """
    if (out / MANIFEST_FILE).exists():
        raise ValueError(f"{out} is a published version; give its model's folder, {out.absolute().parent}")
    refuse_in_published(out)
    _refuse_among_models(out)
    name = model_name(Path(os.path.normpath(out.absolute())).name)  # as it is called, not where a link leads
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected the model's folder")
    _refuse_another_models(out, name)
    _require_utf_8(remark)
    for path in (out, *([run, run / MEASURED] if run.is_dir() else [])):
        check_writable(path)  # before anything is measured, which counts
    exported = _export(run, name, root, images)

    def write(folder: Path) -> None:
        model, objects = exported.model.config, exported.config.data.spec.objects_per_image
        pixels = sample_pixels(model.image_size, model.image_channels, objects)
        _write_graphs_and_samples(folder, exported, pixels)
        manifest = _manifest(folder, name, exported, max(versions(out), default=0), remark)
        manifest = _with_explain(folder, exported.graphs.encoder.SerializeToString(), manifest, pixels)
        check_contract(manifest)
        _write_card_and_manifest(folder, manifest)

    return Publication(publish_next(out, write), exported.parity_error, exported.test)


def _refuse_among_models(out: Path) -> None:
    """Refuse a version's folder within a model's, and a folder of models: neither is `models/NAME`."""
    place = out.absolute()
    if VERSION.fullmatch(place.name) and _holds_versions(place.parent):
        raise ValueError(f"{out} is a version's folder; give its model's folder, {place.parent}")
    if (
        place.is_dir()
        and not _holds_versions(place)
        and any(_holds_versions(folder) for folder in place.iterdir())
    ):
        raise ValueError(f"{out} is a folder of models; add the name of this one: {out}/NAME")


def _holds_versions(folder: Path) -> bool:
    with suppress(OSError):  # a file, or of somebody else's
        return any((folder / str(version) / MANIFEST_FILE).is_file() for version in versions(folder))
    return False


def _refuse_another_models(out: Path, name: str) -> None:
    """Refuse a folder that a link calls otherwise than its versions: only those of that name are served."""
    for version in versions(out) if out.exists() else []:
        with suppress(BundleError):  # what is broken has no name
            other = read_manifest(out / str(version)).model
            if other != name:
                raise ValueError(f"{out} holds versions of {other}; publish under that name")


def _require_utf_8(remark: str | None) -> None:
    try:
        (remark or "").encode()
    except UnicodeEncodeError:
        raise ValueError(f"--remark {remark!r} is not UTF-8, which no model card can hold") from None


def _export(run: Path, name: str, root: Path, images: Path | None) -> Exported:
    """Turn a run's best checkpoint into graphs and measure them; the arguments are those of `publish`."""
    best = open_run(run, torch.device("cpu"), images)
    config, model = best.recorded, _capsule_network(run, best.model)
    _refuse_crop_that_is_not_served(run, config.data)
    train, validation = training_batches(best.config, root)
    shown = train if validation is None else validation
    graphs = trace(model)
    encoder = graphs.encoder.SerializeToString()
    parity_error = parity.check_parity(model, graphs, parity_pixels(shown))
    architecture = model.config.architecture
    confidence = None if validation is None else measure_confidence(encoder, architecture, validation, name)
    measured_before = times_measured(run, config)
    test = evaluate_encoder(encoder, architecture, best.config, root)
    note_measurement(run, best.name, test.error_percent)
    return Exported(
        config,  # unchanged: the folder on this machine is not published
        best.progress,
        model,
        graphs,
        crop_share=(config.data.crop_pixels or shown.size) / shown.size,
        parity_error=parity_error,
        confidence=confidence,
        test=test,
        times_measured=measured_before,
    )


def _refuse_crop_that_is_not_served(run: Path, data: DataConfig) -> None:
    if data.crop_pixels and data.spec.placement != "centre-crop":
        raise ValueError(
            f"{run} was trained with crop_pixels, but a service shows a model of {data.name} "
            "the whole of a picture, not its middle: train without"
        )


def _capsule_network(run: Path, model: Network) -> CapsuleNetwork:
    """The network of a run, if it has capsules."""
    if not isinstance(model, CapsuleNetwork):
        raise ValueError(  # noqa: TRY004  # the run is wrong, not an argument's type
            f"{run} is a {model.config.architecture}, which has no poses; a bundle is made of a network of "
            "capsules, capsnet or matrix-capsnet"
        )
    return model


def parity_pixels(shown: Batches) -> NDArray[np.float32]:
    """As many of these images as parity needs, [N, H, W, C], 0 to 1."""
    count = parity.IMAGES
    pixels = next(shown.fixed(count)).pixels.permute(0, 2, 3, 1).numpy()
    return np.resize(pixels, (count, *pixels.shape[1:]))  # begins again where there are fewer


def _write_graphs_and_samples(folder: Path, exported: Exported, pixels: NDArray[np.float32]) -> None:
    for role, graph in exported.graphs.by_role().items():
        (folder / f"{role}.onnx").write_bytes(graph.SerializeToString())
    samples = _samples(exported.graphs, exported.model.config.architecture, pixels)
    np.savez_compressed(folder / SAMPLES_FILE, allow_pickle=False, **samples)


def _with_explain(folder: Path, encoder: bytes, manifest: Manifest, pixels: NDArray[np.float32]) -> Manifest:
    """Write the explain graph; gives the manifest that lists it, too."""
    content, graph = explain_file(encoder, manifest, pixels)
    (folder / graph.file).write_bytes(content)
    return manifest.model_copy(update={"graphs": {**manifest.graphs, "explain": graph}})


def _write_card_and_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / CARD_FILE).write_text(model_card(manifest), encoding="utf-8")
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _manifest(
    folder: Path, name: str, exported: Exported, earlier_versions: int, remark: str | None
) -> Manifest:
    """The manifest of the graphs and samples in the folder."""
    measured = {"times_measured": exported.times_measured, "earlier_versions": earlier_versions}
    remarks = {"remark": remark} if remark else {}
    config, model = exported.config, exported.model
    data, architecture = config.data.spec, model.config.architecture
    factors = weight_factors(model)
    return Manifest(
        model=name,
        architecture=architecture,
        parameters=asdict(fold_coupling(model).config),  # as the graph has it
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        class_names=config.data.labels,
        objects_per_image=config.data.spec.objects_per_image,
        pose_shape=pose_shape(model),
        views=2 if model.config.image_channels == 2 else 1,
        graphs={
            role: _describe(folder, role, graph, POSE[architecture], factors if role == "encoder" else {})
            for role, graph in exported.graphs.by_role().items()
        },
        samples=File(file=SAMPLES_FILE, sha256=sha256_of(folder / SAMPLES_FILE)),
        preprocessing=Preprocessing(
            height=model.config.image_size,
            width=model.config.image_size,
            channels=model.config.image_channels,
            polarity=data.polarity,
            placement=data.placement,
            crop_share=exported.crop_share,
        ),
        opset=OPSET,
        parity=Parity(
            max_abs_error=exported.parity_error,
            tolerance=parity.TOLERANCE[architecture],
            batch_sizes=parity.BATCH_SIZES[architecture],
            routing_iterations=parity.iterations_compared(model),
            images=f"{config.data.name}, {'held out' if config.data.validation_images else 'trained on'}",
        ),
        metrics=_metrics(exported.test, config.data, name),
        confidence=exported.confidence,
        training={"config": to_dict(config), **asdict(exported.progress), **measured, **remarks},
        source_commit=exported.progress.source_commit,
    )


def _describe(
    folder: Path,
    role: str,
    graph: onnx.ModelProto,
    pose: tuple[float, float] | None,
    factors: dict[str, float],
) -> Graph:
    """A graph that has been written, with the range of a pose's elements and the factors of its weights."""
    ranges = {
        "pixels": PIXEL,
        "probabilities": PROBABILITY,
        "poses": pose,
        "mask": (0.0, 1.0),
        "reconstruction": PIXEL,
    }

    def tensor(value: onnx.ValueInfoProto) -> Tensor:
        return Tensor(name=value.name, shape=shape_of(value), range=ranges[value.name])

    file = f"{role}.onnx"
    return Graph(
        file=file,
        sha256=sha256_of(folder / file),
        inputs=tuple(map(tensor, graph.graph.input)),
        outputs=tuple(map(tensor, graph.graph.output)),
        weight_factors=factors,
    )


def _metrics(test: Errors, data: DataConfig, name: str) -> tuple[Metric, ...]:
    """Of images, and where these show several objects of the objects as well."""
    viewpoints = f", viewpoints of another {data.familiar} only" if data.familiar else ""
    measured = {"test_error": (test.error_percent, f"{test.images} images, {test.errors} wrong")}
    if data.spec.objects_per_image > 1:
        measured["object_error"] = (
            test.object_error_percent,
            f"{test.objects} objects, {test.object_errors} missed",
        )
    return tuple(
        Metric(
            name=metric,
            value=value,
            unit="percent",
            data=f"{data.name} test set{viewpoints}, {counts}",
            command=f"capsnet-export evaluate models/{name}",
        )
        for metric, (value, counts) in measured.items()
    )


def sample_pixels(size: int, channels: int, objects: int) -> NDArray[np.float32]:
    """Digits that the repository draws, `objects` on top of each other: [8, size, size, channels], 0 to 1.

    Of two channels, a stereo pair, the second shows them a little further left.
    """
    rng = np.random.default_rng(SAMPLES_SEED)
    labels = np.arange(SAMPLES)
    drawn = draw_digits(labels, rng, size).astype(np.int64)
    for other in range(1, objects):
        drawn += draw_digits((labels + other) % 10, rng, size)
    pixels = drawn.clip(max=255).astype(np.float32) / np.float32(255)
    if channels == 2:
        return np.stack([pixels, np.roll(pixels, -round(PARALLAX * size), axis=2)], axis=3)
    return pixels[..., None].repeat(channels, axis=3)


def _samples(
    graphs: Graphs, architecture: Architecture, pixels: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    """Images [N, H, W, C] and the graphs' outputs for them on the CPU; image n decodes class n."""
    probabilities, poses = in_pieces(
        lambda some: parity.run_onnx(graphs.encoder, pixels=some), CPU_BATCH[architecture], pixels
    )
    images, classes = probabilities.shape
    mask = np.eye(classes, dtype=np.float32)[np.arange(images) % classes]
    samples = {"pixels": pixels, "probabilities": probabilities, "poses": poses, "mask": mask}
    if graphs.decoder is not None:
        [samples["reconstruction"]] = parity.run_onnx(graphs.decoder, poses=poses, mask=mask)
    return samples
