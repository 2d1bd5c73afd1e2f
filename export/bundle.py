"""Publish a run as the next version of a bundle: graphs, samples, manifest, model card; all or nothing."""

# N samples, J classes, D class pose, C channels, H and W height and width

import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from export import parity
from export.contract.manifest import (
    MANIFEST_FILE,
    VERSION,
    File,
    Graph,
    Manifest,
    Metric,
    Parity,
    Preprocessing,
    Tensor,
    model_name,
    sha256_of,
)
from export.coupling import fold_coupling
from export.evaluate import TestError, evaluate_encoder
from export.model_card import model_card
from export.to_onnx import OPSET, Graphs, trace
from training import checkpoint
from training.config import DataConfig, RunConfig, to_dict
from training.data.drawn import draw_digits
from training.data.load import facts_of
from training.examples import Examples, training_examples
from training.models.capsnet import CapsNet

SAMPLES = 8
SAMPLES_SEED = 8
PROBABILITY = (0.0, 1.0)
PIXEL = (0.0, 1.0)
POSE = (-1.0, 1.0)  # a capsule's length is below 1


@dataclass(frozen=True)
class Publication:
    """A bundle that has been published."""

    path: Path
    parity_error: float
    test: TestError


def publish(run: Path, out: Path, root: Path) -> Publication:
    """Export a run's best checkpoint and publish it as the next version under `out`.

    Args:
        run: a run of capsnet-train.
        out: the model's folder, `models/NAME`; its last part is the model's name.
        root: holds one folder per data set.

    Raises:
        ParityError: PyTorch and ONNX Runtime disagree; nothing is published.
        ValueError: `out` is not a model name, or the run is not one.
        FileNotFoundError: the run has no checkpoint, or the data set is missing.
    """
    name = model_name(out.resolve().name)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; expected the model's folder")
    config = checkpoint.read_config(run)
    best = checkpoint.best_checkpoint(run)
    model = checkpoint.load_model(run, best, torch.device("cpu")).eval()
    if not isinstance(model, CapsNet):
        raise ValueError(  # noqa: TRY004  # the run is wrong, not an argument's type
            f"{run} is a {config.model.architecture}; a bundle is made of a capsule network"
        )
    if model.config.image_channels == 2:
        raise ValueError(f"{run} takes stereo pairs; a bundle is made of a network for grey or RGB pictures")
    _, held_out = training_examples(config, root)
    graphs = trace(model)
    parity_error = parity.check_parity(model, graphs, parity_pixels(held_out))
    test = evaluate_encoder(graphs.encoder.SerializeToString(), config, root)

    out.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=out))
    try:
        crop_share = (config.data.crop_pixels or held_out.size) / held_out.size
        manifest = _write_bundle(aside, name, config, best, model, graphs, crop_share, parity_error, test)
        (aside / "MODEL_CARD.md").write_text(model_card(manifest))
        (aside / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2) + "\n")
        aside.chmod(0o755)  # mkdtemp lets nobody else in
        checkpoint.sync(aside)
        return Publication(_rename_to_next_version(aside, out), parity_error, test)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def parity_pixels(held_out: Examples) -> NDArray[np.float32]:
    """As many of the images that were held out as parity needs, [N, H, W, C], 0 to 1."""
    count = max(parity.BATCH_SIZES)
    pixels = next(held_out.fixed(count)).pixels.permute(0, 2, 3, 1).numpy()
    return np.resize(pixels, (count, *pixels.shape[1:]))  # begins again where there are fewer


def _write_bundle(
    folder: Path,
    name: str,
    config: RunConfig,
    best: Path,
    model: CapsNet,
    graphs: Graphs,
    crop_share: float,
    parity_error: float,
    test: TestError,
) -> Manifest:
    """Write graphs and samples; give the manifest that describes them."""
    facts = facts_of(config.data)
    progress = checkpoint.read_progress(best)
    for role, graph in graphs.by_role().items():
        (folder / f"{role}.onnx").write_bytes(graph.SerializeToString())
    pixels = sample_pixels(
        model.config.image_size, model.config.image_channels, config.data.objects_per_image
    )
    np.savez_compressed(folder / "samples.npz", allow_pickle=False, **_samples(graphs, pixels))
    return Manifest(
        model=name,
        architecture="capsnet",
        parameters=asdict(fold_coupling(model).config),  # as the graph has it
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
        class_names=facts.class_names,
        objects_per_image=config.data.objects_per_image,
        pose_shape=(model.config.class_dim,),
        graphs={role: _describe(folder, role, graph) for role, graph in graphs.by_role().items()},
        samples=File(file="samples.npz", sha256=sha256_of(folder / "samples.npz")),
        preprocessing=Preprocessing(
            height=model.config.image_size,
            width=model.config.image_size,
            channels=model.config.image_channels,
            polarity=facts.polarity,
            placement=facts.placement,
            crop_share=crop_share,
        ),
        opset=OPSET,
        parity=Parity(
            max_abs_error=parity_error,
            tolerance=parity.TOLERANCE,
            batch_sizes=parity.BATCH_SIZES,
            routing_iterations=parity.ROUTING_ITERATIONS,
            images=f"{config.data.name}, held out",
        ),
        metrics=_metrics(test, config.data, name),
        training={"config": to_dict(config), **asdict(progress)},
        source_commit=progress.source_commit,
    )


def _describe(folder: Path, role: str, graph: onnx.ModelProto) -> Graph:
    ranges = {
        "pixels": PIXEL,
        "probabilities": PROBABILITY,
        "poses": POSE,
        "mask": (0.0, 1.0),
        "reconstruction": PIXEL,
    }

    def tensor(value: onnx.ValueInfoProto) -> Tensor:
        shape = tuple(None if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim)
        return Tensor(name=value.name, shape=shape, range=ranges[value.name])

    file = f"{role}.onnx"
    return Graph(
        file=file,
        sha256=sha256_of(folder / file),
        inputs=tuple(map(tensor, graph.graph.input)),
        outputs=tuple(map(tensor, graph.graph.output)),
    )


def _metrics(test: TestError, data: DataConfig, name: str) -> tuple[Metric, ...]:
    """Of images, and where these show several objects of the objects as well."""
    measured = {"test_error": (test.percent, f"{test.images} images, {test.errors} wrong")}
    if data.objects_per_image > 1:
        measured["object_error"] = (
            test.object_percent,
            f"{test.objects} objects, {test.object_errors} missed",
        )
    return tuple(
        Metric(
            name=metric,
            value=value,
            unit="percent",
            data=f"{data.name} test set, {counts}",
            command=f"capsnet-export evaluate models/{name}",
        )
        for metric, (value, counts) in measured.items()
    )


def sample_pixels(size: int, channels: int, objects: int) -> NDArray[np.float32]:
    """Digits that the repository draws, so many laid over each other: [8, size, size, channels], 0 to 1."""
    rng = np.random.default_rng(SAMPLES_SEED)
    labels = np.arange(SAMPLES)
    drawn = draw_digits(labels, rng, size).astype(np.int64)
    for other in range(1, objects):
        drawn += draw_digits((labels + other) % 10, rng, size)
    pixels = drawn.clip(max=255)[..., None].repeat(channels, axis=3).astype(np.float32) / np.float32(255)
    return pixels


def _samples(graphs: Graphs, pixels: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Images [N, H, W, C], and what the graphs make of them on the CPU."""
    probabilities, poses = parity.run_onnx(graphs.encoder, pixels=pixels)
    mask = np.eye(probabilities.shape[1], dtype=np.float32)[probabilities.argmax(axis=1)]
    samples = {"pixels": pixels, "probabilities": probabilities, "poses": poses, "mask": mask}
    if graphs.decoder is not None:
        [samples["reconstruction"]] = parity.run_onnx(graphs.decoder, poses=poses, mask=mask)
    return samples


def _rename_to_next_version(aside: Path, out: Path) -> Path:
    """Give the finished folder its number; the next one if another publisher was faster."""
    version = 1 + max((int(p.name) for p in out.iterdir() if VERSION.fullmatch(p.name)), default=0)
    while True:
        try:
            published = aside.rename(out / str(version))
        except OSError:  # a version's folder is never empty, so rename cannot replace one
            if not (out / str(version)).exists():
                raise
            version += 1
        else:
            checkpoint.sync(out)
            return published
