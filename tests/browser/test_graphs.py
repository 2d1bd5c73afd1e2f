"""Graphs with weights in float16."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from browser.graphs import HalfWeights, RoundingError, browser_graphs, halved
from export.contract.manifest import newest_version, read_manifest
from export.explain.shared_weights import hold_weights
from tests.support.paths import MODELS


@pytest.mark.parametrize("name", sorted(path.name for path in MODELS.iterdir()))
def test_the_samples_of_a_bundle_are_answered_as_by_its_own_graphs(name):
    bundle = newest_version(MODELS / name)
    manifest = read_manifest(bundle)
    graphs, weights = browser_graphs(bundle, manifest)
    assert set(graphs) == set(manifest.graphs)
    samples = np.load(bundle / manifest.samples.file)
    for role, outputs in (("encoder", ("probabilities", "poses")), ("decoder", ("reconstruction",))):
        session = ort.InferenceSession(hold_weights(graphs[role], weights))
        found = session.run(outputs, {given.name: samples[given.name] for given in session.get_inputs()})
        for output, values in zip(outputs, found, strict=True):
            np.testing.assert_allclose(values, samples[output], atol=5e-3)


def graph_with(weight: np.ndarray) -> bytes:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    shapes = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 16]) for name in "xy"]
    graph = helper.make_graph(
        [product], "product", shapes[:1], shapes[1:], [numpy_helper.from_array(weight, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def test_a_weight_that_float16_does_not_hold_is_named():
    weight = np.ones((16, 16), np.float32)
    weight[3, 4] = 1e5
    with pytest.raises(RoundingError, match="w holds 100000; float16 ends at 65504"):
        halved(graph_with(weight), HalfWeights())


def test_equal_weights_are_in_the_file_once():
    weights, weight = HalfWeights(), np.eye(16, dtype=np.float32)
    for _ in range(2):
        halved(graph_with(weight), weights)
    assert len(weights.content) == weight.size * 2
