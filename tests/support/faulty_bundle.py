"""Bundles that are what their manifests say and make trouble all the same: slow ones, and one that fails."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.tiny_bundle import SIDE, replace_file, write_bundle


def write_slow_bundle(folder: Path) -> Path:
    """A bundle whose encoder multiplies large matrices first, for nothing; 20 ms an image, or more."""
    nodes = [
        helper.make_node("Reshape", ["pixels", "column_shape"], ["column"]),
        helper.make_node("Reshape", ["pixels", "row_shape"], ["row"]),
        helper.make_node("MatMul", ["column", "row"], ["square"]),
        helper.make_node("MatMul", ["square", "square"], ["product"]),
        helper.make_node("ReduceMin", ["product"], ["least"], keepdims=0),
        helper.make_node("Mul", ["least", "nothing"], ["zero"]),
        helper.make_node("Add", ["pixels", "zero"], ["seen"]),
    ]
    constants = {
        "column_shape": np.array([-1, SIDE * SIDE, 1]),
        "row_shape": np.array([-1, 1, SIDE * SIDE]),
        "nothing": np.array(0, np.float32),
    }
    return _put_before_the_encoder(write_bundle(folder), nodes, constants)


def write_touchy_bundle(folder: Path) -> Path:
    """A bundle whose encoder fails, and with it the whole batch, where a pixel is 1.0: white.

    A pixel, cut to an integer, is looked up in a table that has no second entry.
    """
    nodes = [
        helper.make_node("Cast", ["pixels"], ["index"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["zero"]),
        helper.make_node("Add", ["pixels", "zero"], ["seen"]),
    ]
    return _put_before_the_encoder(write_bundle(folder), nodes, {"table": np.zeros(1, np.float32)})


def _put_before_the_encoder(
    folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]
) -> Path:
    """The encoder reads `seen`, which the nodes make of `pixels`; its outputs, and the samples, stay."""
    encoder = onnx.load(folder / "encoder.onnx")
    for node in encoder.graph.node:
        node.input[:] = ["seen" if name == "pixels" else name for name in node.input]
    for node in reversed(nodes):
        encoder.graph.node.insert(0, node)
    encoder.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    onnx.checker.check_model(encoder)
    replace_file(folder, "encoder", encoder.SerializeToString())
    return folder
