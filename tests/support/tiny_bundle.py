"""A bundle made by hand: three classes, two matrix products, no torch; every fact of it is true."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from export.contract.manifest import (
    Confidence,
    File,
    Graph,
    Manifest,
    Metric,
    Parity,
    Preprocessing,
    Tensor,
)

SIDE = 28
CLASSES = ("0", "1", "2")
SAMPLES = 8

DIGITS = Preprocessing(height=SIDE, width=SIDE, polarity="light-on-dark", placement="digit")
PAIRS = Preprocessing(height=SIDE, width=SIDE, channels=2, placement="centre-crop", crop_share=2 / 3)

Shape = tuple[int | None, ...]


def write_bundle(
    folder: Path,
    *,
    seed: int = 0,
    decoder: bool = True,
    pose_shape: tuple[int, ...] = (4,),
    objects_per_image: int = 1,
    classes: tuple[str, ...] = CLASSES,
    channels: int = 1,
    encoder: onnx.ModelProto | None = None,
    parameters: Mapping[str, Any] | None = None,
    min_probability: float | None = None,
) -> Path:
    """Write the bundle `<model>/<version>` as which the folder is named; returns the folder.

    Two channels are the views of a pair, of which the encoder weighs each in its own way. Another encoder has
    the same inputs and outputs; `parameters` are those of its architecture. Answers are confident from
    `min_probability` on.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    classes_count, size = len(classes), math.prod(pose_shape)
    picture: Shape = (None, SIDE, SIDE, channels)
    poses: Shape = (None, classes_count, size)
    mask: Shape = (None, classes_count)
    models = {"encoder": encoder or encoder_model(rng, classes_count, size, channels)}
    tensors = {"encoder": ({"pixels": picture}, {"probabilities": mask, "poses": poses})}
    if decoder:
        models["decoder"] = decoder_model(rng, classes_count, size, channels)
        tensors["decoder"] = ({"poses": poses, "mask": mask}, {"reconstruction": picture})
    graphs = {}
    for role, model in models.items():
        content = model.SerializeToString()
        (folder / f"{role}.onnx").write_bytes(content)
        inputs, outputs = (
            tuple(Tensor(name=name, shape=shape) for name, shape in side.items()) for side in tensors[role]
        )
        graphs[role] = Graph(file=f"{role}.onnx", sha256=digest(content), inputs=inputs, outputs=outputs)
    samples = folder / "samples.npz"
    np.savez(samples, **sample_arrays(rng, models, channels))
    manifest = Manifest(
        model=folder.parent.name,
        architecture="capsnet",
        parameters=dict(parameters or {}),
        parameter_count=0,
        class_names=classes,
        objects_per_image=objects_per_image,
        pose_shape=pose_shape,
        views=2 if channels == 2 else 1,
        graphs=graphs,
        samples=File(file="samples.npz", sha256=digest(samples.read_bytes())),
        preprocessing=PAIRS if channels == 2 else DIGITS.model_copy(update={"channels": channels}),
        opset=20,
        parity=Parity(
            max_abs_error=0, tolerance=1e-5, batch_sizes=(1,), routing_iterations=(1,), images="noise"
        ),
        metrics=(Metric(name="error", value=0.5, unit="1", data="noise", command="true"),),
        confidence=None if min_probability is None else confidence(min_probability),
        training={},
        source_commit="0" * 40,
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder


def confidence(min_probability: float) -> Confidence:
    """A threshold, as if measured on one image."""
    return Confidence(
        min_probability=min_probability,
        right=1,
        right_confident=1,
        wrong=0,
        wrong_confident=0,
        data="noise",
        command="true",
    )


def encoder_model(rng: np.random.Generator, classes: int, size: int, channels: int = 1) -> onnx.ModelProto:
    """Pixels through one matrix product to poses whose lengths, below 1, are the probabilities."""
    weights = rng.normal(size=(SIDE * SIDE * channels, classes * size)).astype(np.float32) / 20
    nodes = [
        helper.make_node("Reshape", ["pixels", "flat_shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["raw"]),
        helper.make_node("Tanh", ["raw"], ["bounded"]),
        helper.make_node("Mul", ["bounded", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "pose_shape"], ["poses"]),
        helper.make_node("ReduceL2", ["poses", "last"], ["probabilities"], keepdims=0),
    ]
    constants = {
        "flat_shape": np.array([-1, SIDE * SIDE * channels]),
        "weights": weights,
        "scale": np.array(1 / math.sqrt(size), np.float32),
        "pose_shape": np.array([-1, classes, size]),
        "last": np.array([2]),
    }
    inputs = {"pixels": (None, SIDE, SIDE, channels)}
    outputs = {"probabilities": (None, classes), "poses": (None, classes, size)}
    return make_model(nodes, constants, inputs, outputs)


def decoder_model(rng: np.random.Generator, classes: int, size: int, channels: int = 1) -> onnx.ModelProto:
    """The masked poses through one matrix product to pixels in 0-1."""
    nodes = [
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["poses", "column"], ["masked"]),
        helper.make_node("Reshape", ["masked", "flat_shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["raw"]),
        helper.make_node("Sigmoid", ["raw"], ["bounded"]),
        helper.make_node("Reshape", ["bounded", "picture_shape"], ["reconstruction"]),
    ]
    constants = {
        "last": np.array([2]),
        "flat_shape": np.array([-1, classes * size]),
        "weights": rng.normal(size=(classes * size, SIDE * SIDE * channels)).astype(np.float32) * 4,
        "picture_shape": np.array([-1, SIDE, SIDE, channels]),
    }
    inputs = {"poses": (None, classes, size), "mask": (None, classes)}
    return make_model(nodes, constants, inputs, {"reconstruction": (None, SIDE, SIDE, channels)})


def make_model(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    inputs: dict[str, Shape],
    outputs: dict[str, Shape],
) -> onnx.ModelProto:
    """A checked model with these float32 inputs and outputs; None is the batch axis N."""

    def infos(tensors: dict[str, Shape]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, ["N" if size is None else size for size in shape]
            )
            for name, shape in tensors.items()
        ]

    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", infos(inputs), infos(outputs), initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def sample_arrays(
    rng: np.random.Generator, models: dict[str, onnx.ModelProto], channels: int = 1
) -> dict[str, np.ndarray]:
    """Noise, and what the graphs make of it."""
    pixels = rng.random((SAMPLES, SIDE, SIDE, channels), np.float32)
    probabilities, poses = run_model(models["encoder"], pixels=pixels)
    samples = {"pixels": pixels, "probabilities": probabilities, "poses": poses}
    if "decoder" in models:
        mask = np.eye(probabilities.shape[1], dtype=np.float32)[probabilities.argmax(axis=1)]
        (reconstruction,) = run_model(models["decoder"], poses=poses, mask=mask)
        samples |= {"mask": mask, "reconstruction": reconstruction}
    return samples


def run_model(model: onnx.ModelProto | bytes, **feeds: np.ndarray) -> list[np.ndarray]:
    """What ONNX Runtime makes of the feeds, without the service."""
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, feeds)


def rewrite_manifest(folder: Path, **changes: object) -> None:
    """Change top-level fields of the manifest, as a broken exporter would."""
    path = folder / "manifest.json"
    manifest = Manifest.model_validate_json(path.read_bytes())
    path.write_text(manifest.model_copy(update=changes).model_dump_json())


def replace_file(folder: Path, role: str, content: bytes) -> None:
    """Replace a graph or the samples, with the hash in the manifest to match."""
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    if role == "samples":
        (folder / manifest.samples.file).write_bytes(content)
        rewrite_manifest(folder, samples=manifest.samples.model_copy(update={"sha256": digest(content)}))
        return
    graph = manifest.graphs[role]
    (folder / graph.file).write_bytes(content)
    changed = graph.model_copy(update={"sha256": digest(content)})
    rewrite_manifest(folder, graphs={**manifest.graphs, role: changed})


def digest(content: bytes) -> str:
    """As the manifest writes it."""
    return hashlib.sha256(content).hexdigest()
