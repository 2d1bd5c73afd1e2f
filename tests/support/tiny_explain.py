"""An explain graph for the bundle made by hand: not of routing, but its outputs are as those of one."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from export.contract.explain_outputs import explain_outputs
from export.contract.manifest import Graph, Tensor, read_manifest
from export.explain.shared_weights import share_weights
from tests.support.tiny_bundle import digest, rewrite_manifest, write_bundle

ITERATIONS, TYPES = 2, 2
# Of a CapsNet with 28x28 pixels: 6x6 primary capsules of each type.
PARAMETERS = {
    "image_size": 28,
    "kernel": 9,
    "primary_types": TYPES,
    "primary_dim": 4,
    "classes": 3,
    "class_dim": 4,
    "routing_iterations": ITERATIONS,
}


def write_explained_bundle(folder: Path, **options: object) -> Path:
    """As `write_bundle`, with an explain graph, and 28x28 pixels for each capsule's kernel of 9."""
    write_bundle(folder, parameters=PARAMETERS, **options)
    add_explain_graph(folder)
    return folder


def add_explain_graph(folder: Path) -> None:
    """Write a graph that reads the encoder's weights from its file, and note it in the manifest."""
    manifest, rng = read_manifest(folder), np.random.default_rng(7)
    shapes = explain_outputs(manifest)
    encoder = (folder / "encoder.onnx").read_bytes()
    content = share_weights(explain_model(encoder, shapes, rng), encoder, "encoder.onnx").SerializeToString()
    (folder / "explain.onnx").write_bytes(content)
    outputs = tuple(Tensor(name=name, shape=(None, *shape)) for name, shape in shapes.items())
    known = manifest.graphs["encoder"]
    graph = Graph(
        file="explain.onnx", sha256=digest(content), inputs=known.inputs, outputs=(*known.outputs, *outputs)
    )
    rewrite_manifest(folder, graphs={**manifest.graphs, "explain": graph})


def explain_model(
    encoder: bytes, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator
) -> onnx.ModelProto:
    """The encoder and, from its poses, shares of the classes, agreements with them, and what is active."""
    model = onnx.load_model_from_string(encoder)
    iterations, classes, size = shapes["capsules"]
    constants = {
        "explain/flat_shape": np.array([-1, classes * size]),
        "explain/agreement_weights": weights(rng, classes * size, shapes["agreements"]),
        "explain/activity_weights": weights(rng, classes * size, shapes["activities"]),
        "explain/growth": np.linspace(0.5, 1, iterations, dtype=np.float32)[:, None, None],
        "explain/second": np.array([1]),
        "explain/pose": np.array([3]),
        **{f"explain/{name}": np.array([-1, *shape]) for name, shape in shapes.items()},
    }
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    model.graph.node.extend(
        [
            helper.make_node("Reshape", ["poses", "explain/flat_shape"], ["explain/flat"]),
            helper.make_node("MatMul", ["explain/flat", "explain/agreement_weights"], ["explain/raw"]),
            helper.make_node("Reshape", ["explain/raw", "explain/agreements"], ["agreements"]),
            helper.make_node("Softmax", ["agreements"], ["couplings"], axis=2),
            helper.make_node("Unsqueeze", ["poses", "explain/second"], ["explain/once"]),
            helper.make_node("Mul", ["explain/once", "explain/growth"], ["capsules"]),
            helper.make_node("ReduceL2", ["capsules", "explain/pose"], ["activations"], keepdims=0),
            helper.make_node("MatMul", ["explain/flat", "explain/activity_weights"], ["explain/active"]),
            helper.make_node("Sigmoid", ["explain/active"], ["explain/lengths"]),
            helper.make_node("Reshape", ["explain/lengths", "explain/activities"], ["activities"]),
        ]
    )
    model.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", *shape])
        for name, shape in shapes.items()
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def weights(rng: np.random.Generator, rows: int, shape: tuple[int, ...]) -> np.ndarray:
    """Random ones from so many numbers to an array of this shape, flat."""
    return rng.normal(size=(rows, int(np.prod(shape)))).astype(np.float32)
