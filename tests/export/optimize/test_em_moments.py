"""EM routing from moments, as ONNX Runtime computes it, against the graph as export writes it."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from export.contract.architecture import MatrixCapsNetArchitecture, stated_architecture
from export.contract.manifest import newest_version, read_manifest
from export.optimize.em_moments import em_moments
from export.optimize.encoder import NotOptimizableError
from export.optimize.rewrite import rewritten
from tests.support.explained import matrix_network, run_named
from tests.support.paths import MODELS


def plain_and_moments(name: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    _, model, manifest = matrix_network(name)
    architecture = stated_architecture(manifest)
    assert isinstance(architecture, MatrixCapsNetArchitecture)
    return model, em_moments(model, architecture)


def pictures(model: onnx.ModelProto, count: int) -> np.ndarray:
    """Noise of all contrasts, the last one blank."""
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim[1:]]
    contrast = np.linspace(1, 0, count).reshape(count, 1, 1, 1)
    return (np.random.default_rng(0).random((count, *shape)) * contrast).astype(np.float32)


def assert_same(plain: onnx.ModelProto, other: onnx.ModelProto, tolerance: float, images: int = 5) -> None:
    pixels = pictures(plain, images)
    expected, found = run_named(plain, pixels=pixels), run_named(other, pixels=pixels)
    assert found.keys() == expected.keys() == {"probabilities", "poses"}
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=0, atol=tolerance, err_msg=output)


@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("name", ["the paper's", "1 iteration", "2 iterations, a softer density"])
def test_it_computes_what_the_plain_graph_does(name, images):
    plain, moments = plain_and_moments(name)
    onnx.checker.check_model(moments, full_check=True)
    assert_same(plain, moments, 2e-6, images)


def test_it_computes_what_the_shipped_graph_does():
    bundle = newest_version(MODELS / "matrix-capsnet-toys")
    manifest = read_manifest(bundle)
    plain = onnx.load(bundle / manifest.graphs["encoder"].file)
    variants = rewritten(plain, stated_architecture(manifest))
    assert variants.keys() == {"em_moments"}
    assert_same(plain, variants["em_moments"], 1e-5)


def test_there_are_no_tiles_of_a_second_rank():
    _, model, manifest = matrix_network("the paper's")
    assert rewritten(model, stated_architecture(manifest), rank=1) == {}


def test_nothing_is_as_large_as_the_votes_but_they_and_their_squares():
    plain, moments = plain_and_moments("the paper's")

    def operators(model):
        return Counter(node.op_type for node in model.graph.node)

    assert operators(plain)["Einsum"] == 3
    assert operators(moments)["Einsum"] == 0
    inferred = onnx.shape_inference.infer_shapes(moments, data_prop=True)
    sizes = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in inferred.graph.value_info
    }
    matrices = next(
        tensor for tensor in moments.graph.initializer if tensor.name == "conv_caps/0/votes/matrices"
    )
    children, pose, _ = matrices.dims
    like_votes = [name for name, size in sizes.items() if size[-2:] == [children, pose] and len(size) == 5]
    assert like_votes == ["conv_caps/0/centered", "conv_caps/0/routing/squares_1"]


def test_votes_far_from_0_lose_nothing():
    """They differ by hundredths: around 0 instead of the first mean, squares of 10 would hide that."""
    _, model, manifest = matrix_network("the paper's")
    far = onnx.ModelProto()
    far.CopyFrom(model)
    [votes] = (node for node in far.graph.node if node.name == "class_caps/votes")
    for tensor in far.graph.initializer:
        if tensor.name == votes.input[1]:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 10, tensor.name))
    moments = em_moments(far, stated_architecture(manifest))
    pixels = pictures(far, 5)
    expected, found = run_named(far, pixels=pixels), run_named(moments, pixels=pixels)
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["poses"], expected["poses"], rtol=0, atol=2e-5)


def test_a_layer_whose_matrices_are_no_constant_stays_as_it_is():
    """As of class capsules with so many matrices that the exporter does not fold them."""
    _, model, manifest = matrix_network("the paper's")
    computed = onnx.ModelProto()
    computed.CopyFrom(model)
    [einsum] = (node for node in computed.graph.node if node.name == "class_caps/votes/einsum_2")
    computed.graph.node.insert(0, helper.make_node("Identity", [einsum.input[1]], ["computed"], "computed"))
    einsum.input[1] = "computed"
    moments = em_moments(computed, stated_architecture(manifest))
    assert [node.name for node in moments.graph.node if node.op_type == "Einsum"] == [einsum.name]
    assert_same(model, moments, 2e-6)


@pytest.mark.parametrize("name", ["official, calibrated", "mixing proportions, vectors"])
def test_variants_of_routing_stay_as_they_are(name):
    _, model, manifest = matrix_network(name)
    with pytest.raises(NotOptimizableError, match="no layer has routing as capsnet-export writes it"):
        em_moments(model, stated_architecture(manifest))
    assert rewritten(model, stated_architecture(manifest)) == {}


def test_other_readers_of_votes_keep_a_layer_as_it_is():
    _, model, manifest = matrix_network("1 iteration")
    read = onnx.ModelProto()
    read.CopyFrom(model)
    for path in ("conv_caps/0", "conv_caps/1", "class_caps"):
        read.graph.node.append(helper.make_node("Identity", [f"{path}/votes"], [f"{path}/read"]))
    with pytest.raises(NotOptimizableError):
        em_moments(read, stated_architecture(manifest))


def test_a_graph_of_other_iterations_than_the_manifest_states_stays_as_it_is():
    _, model, _ = matrix_network("the paper's")
    with pytest.raises(NotOptimizableError):
        em_moments(model, MatrixCapsNetArchitecture(routing_iterations=2))


def test_a_manifest_without_iterations_states_no_architecture():
    manifest = read_manifest(newest_version(MODELS / "matrix-capsnet-toys"))
    parameters = {name: value for name, value in manifest.parameters.items() if name != "routing_iterations"}
    assert stated_architecture(manifest.model_copy(update={"parameters": parameters})) is None
