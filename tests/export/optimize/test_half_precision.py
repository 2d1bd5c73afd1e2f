"""Half precision: products in float16, norms and logits never, and a gate that answers have to pass."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from export.contract.manifest import newest_version
from export.optimize.half_gate import MAX_LENGTH_ERROR, compare
from export.optimize.half_precision import PRODUCTS, HalfPrecisionError, half_precision, halved
from tests.support.tiny_bundle import SIDE, encoder_model, make_model

SHIPPED = newest_version(Path("models/capsnet-mnist"))


@pytest.fixture(scope="module")
def plain() -> onnx.ModelProto:
    return onnx.load(f"{SHIPPED}/encoder.onnx")


@pytest.fixture(scope="module")
def half(plain) -> onnx.ModelProto:
    return half_precision(plain)


@pytest.fixture(scope="module")
def types(half) -> dict[str, int]:
    """Every tensor's type, as ONNX infers it."""
    graph = onnx.shape_inference.infer_shapes(half, strict_mode=True).graph
    values = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    return values | {weight.name: weight.data_type for weight in graph.initializer}


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_inputs_and_outputs_are_those_of_the_plain_graph(plain, half):
    assert list(half.graph.input) == list(plain.graph.input)
    assert list(half.graph.output) == list(plain.graph.output)


def test_the_plain_graph_is_not_changed(plain):
    before = plain.SerializeToString()
    half_precision(plain)
    assert plain.SerializeToString() == before


def test_every_product_is_in_half_precision(half, types):
    products = [node for node in half.graph.node if node.op_type in PRODUCTS]
    assert {node.op_type for node in products} == {"Conv", "MatMul"}
    for node in products:
        assert {types[name] for name in (*node.input, *node.output)} == {TensorProto.FLOAT16}


@pytest.mark.parametrize("operator", ["Pow", "ReduceSum", "Sqrt", "Div", "Mul", "Add", "Softmax", "ReduceL2"])
def test_norms_logits_and_probabilities_are_in_full_precision(half, types, operator):
    nodes = [node for node in half.graph.node if node.op_type == operator]
    assert nodes
    for node in nodes:
        assert {types[name] for name in node.output} == {TensorProto.FLOAT}


def test_nothing_between_two_full_precision_operators_is_rounded(half):
    made_by = {name: node for node in half.graph.node for name in node.output}
    for node in half.graph.node:
        for name in node.input:
            below = made_by.get(name)
            if node.op_type == "Cast" and below is not None:
                assert below.op_type != "Cast"


def test_the_weights_are_held_once_and_half_as_large(plain, half):
    assert half.ByteSize() < 0.51 * plain.ByteSize()


def test_the_samples_are_answered_as_the_plain_graph_does(half):
    with np.load(f"{SHIPPED}/samples.npz") as samples:
        probabilities, poses = run(half, pixels=samples["pixels"])
        agreement = compare(samples["probabilities"], probabilities)
        assert agreement.other_decisions == 0
        assert agreement.length_error < MAX_LENGTH_ERROR
        assert np.abs(poses - samples["poses"]).max() < MAX_LENGTH_ERROR


def test_a_weight_that_float16_cannot_hold_is_named():
    model = encoder_model(np.random.default_rng(0), 3, 4)
    for weight in model.graph.initializer:
        if weight.name == "weights":
            weight.CopyFrom(
                onnx.numpy_helper.from_array(np.full((SIDE * SIDE, 12), 1e5, np.float32), "weights")
            )
    with pytest.raises(HalfPrecisionError, match="weights holds 100000; float16 ends at 65504"):
        half_precision(model)


def test_a_product_that_is_an_output_and_read_by_others_is_given_in_float32():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
        helper.make_node("Add", ["y", "y"], ["twice"]),
        helper.make_node("Mul", ["w", "z"], ["scaled"]),  # a weight that is wanted in both types
    ]
    shape = (None, 2)
    outputs = dict.fromkeys(("y", "z", "twice", "scaled"), shape)
    weights = np.array([[0.5, 1], [2, 0.25]], np.float32)  # with x, exact in float16
    model = make_model(nodes, {"w": weights}, {"x": shape}, outputs)
    x = np.array([[1, 2], [3, 4]], np.float32)
    for found, expected in zip(run(half_precision(model), x=x), run(model, x=x), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("content", [b"no graph", b""])
def test_bytes_that_are_no_graph_are_refused(content):
    with pytest.raises(HalfPrecisionError, match="no ONNX graph"):
        halved(content, "capsnet")


def test_a_graph_survives_its_file(plain, half):
    assert halved(plain.SerializeToString(), "capsnet") == half.SerializeToString()
