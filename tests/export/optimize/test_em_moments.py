"""EM routing from moments, as ONNX Runtime computes it, against the graph as export writes it."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

from export.contract.architecture import MatrixCapsNetArchitecture, stated_architecture
from export.contract.manifest import newest_version, read_manifest
from export.optimize.derive import derive, write_variants
from export.optimize.em_moments import Layer, add_mean, add_variance, em_moments
from export.optimize.encoder import NotOptimizableError
from export.optimize.nodes import Nodes
from export.optimize.plan import files_of
from export.optimize.rewrite import rewritten
from export.to_onnx import trace_encoder
from tests.support.explained import TINY_MATRIX, matrix_network, run_named
from tests.support.paths import MODELS
from training.config import MatrixCapsNetConfig
from training.models.matrix_capsnet import MatrixCapsNet


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
@pytest.mark.parametrize("name", ["the paper's", "1 iteration", "2 iterations, a softer density", "vectors"])
def test_it_computes_what_the_plain_graph_does(name, images):
    plain, moments = plain_and_moments(name)
    onnx.checker.check_model(moments, full_check=True)
    assert_same(plain, moments, 1e-5, images)


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


def test_after_the_first_iteration_nothing_is_as_large_as_the_votes():
    plain, moments = plain_and_moments("the paper's")
    votes = run_named(with_outputs(plain, "conv_caps/0/votes"), pixels=pictures(plain, 1))
    size = votes["conv_caps/0/votes"].size

    def as_large(model):
        names = [node.output[0] for node in model.graph.node if "conv_caps/0/routing/" in node.name]
        found = run_named(with_outputs(model, *names), pixels=pictures(model, 1))
        return [name for name in names if found[name].size >= size]

    assert len(as_large(plain)) == 6  # differences and their squares, in each iteration
    assert as_large(moments) == ["conv_caps/0/routing/squares_1"]


def with_outputs(model: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return shown


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


def test_parents_to_which_almost_nothing_is_assigned_are_the_same():
    """Their weights sum up to much less than 1, because of the mass floor."""
    _, model, manifest = matrix_network("the paper's")
    dead = onnx.ModelProto()
    dead.CopyFrom(model)
    for tensor in dead.graph.initializer:
        if tensor.name.startswith("primary_caps.activations."):
            level = -14 if tensor.name.endswith("bias") else 0
            tensor.CopyFrom(numpy_helper.from_array(np.full(tensor.dims, level, np.float32), tensor.name))
    assert_same(dead, em_moments(dead, stated_architecture(manifest)), 3e-5)


def test_a_parent_of_one_child_far_from_the_center_has_no_negative_variance():
    children, parents = 3, 2000
    layer = Layer(
        path="caps",
        poses="",
        inside=np.zeros((1, children), np.int64),
        matrices=np.zeros((children, 1, parents, 4, 4), np.float32),
        offsets=None,
        weights=["weights_1", "weights_2"],
        means=["mean_1", "mean_2"],
        squares=["squares_1", "squares_2"],
    )
    random = np.random.default_rng(0)
    centered = (1000 * random.standard_normal((1, 1, parents, children, 16))).astype(np.float32)
    weights = np.zeros((1, 1, parents, 1, children), np.float32)
    weights[..., 0] = 1
    feeds = {
        "weights_2": weights,
        layer.centered: centered,
        "squares_1": centered**2,
        "mean_1": random.standard_normal((1, 1, parents, 1, 16)).astype(np.float32),
    }
    nodes = Nodes()
    add_mean(nodes, layer, 1)
    add_variance(nodes, layer, 1, helper.make_node("MatMul", ["weights_2", "squares_2"], ["variance"]))
    graph = helper.make_graph(
        nodes.nodes,
        "variances",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name, x in feeds.items()],
        [onnx.ValueInfoProto(name="variance")],
        nodes.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    variance = run_named(model, **feeds)["variance"]
    assert variance.min() == 0
    np.testing.assert_allclose(variance, 0, atol=0.5)  # roundings of 10 million


def test_a_graph_that_amplifies_rounding_runs_as_it_is(tmp_path):
    torch.manual_seed(0)
    config = MatrixCapsNetConfig(**TINY_MATRIX, matrix_noise=3.0)
    model = trace_encoder(MatrixCapsNet(config).eval())
    plan = derive(
        model.SerializeToString(),
        b"",
        tmp_path / "plan",
        (1, 1),
        MatrixCapsNetArchitecture(routing_iterations=3),
    )
    assert plan.errors["em_moments"] > 1e-4
    assert plan.variants == {"plain"}


def test_a_network_without_large_weights_is_derived_as_others_are(tmp_path):
    torch.manual_seed(0)
    small = {
        "image_size": 17,
        "image_channels": 1,
        "primary_types": 1,
        "conv_caps_types": (2, 2),
        "classes": 2,
    }
    model = trace_encoder(MatrixCapsNet(MatrixCapsNetConfig(**TINY_MATRIX | small)).eval())
    files = write_variants(model, MatrixCapsNetArchitecture(routing_iterations=3), tmp_path, threads=1)
    _, weights = files_of("em_moments")
    assert (tmp_path / weights).stat().st_size == 0
    pixels = pictures(model, 3)
    found, expected = (
        ort.InferenceSession(files[name]).run(None, {"pixels": pixels}) for name in ("em_moments", "plain")
    )
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, others, rtol=0, atol=1e-4)


def test_class_capsules_whose_matrices_are_expanded_in_the_graph_are_read_through_it():
    """The exporter does not fold large ones."""
    _, model, manifest = matrix_network("the paper's")
    expanded = onnx.ModelProto()
    expanded.CopyFrom(model)
    [einsum] = (node for node in expanded.graph.node if node.name == "class_caps/votes/einsum_2")
    [tensor] = (one for one in expanded.graph.initializer if one.name == einsum.input[1])
    matrices = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(matrices[:1], tensor.name))
    expanded.graph.initializer.append(numpy_helper.from_array(np.array(matrices.shape), "shape"))
    place = list(expanded.graph.node).index(einsum)
    expand = helper.make_node("Expand", [tensor.name, "shape"], ["matrices"], "class_caps/votes/expand_1")
    expanded.graph.node.insert(place, expand)
    einsum.input[1] = "matrices"
    assert_same(model, expanded, 0)
    moments = em_moments(expanded, stated_architecture(manifest))
    assert not {"Einsum", "Expand"} & {node.op_type for node in moments.graph.node}
    assert_same(model, moments, 1e-5)


def changed_equation(model: onnx.ModelProto, einsum: onnx.NodeProto) -> None:
    """Matrices that are multiplied transposed."""
    einsum.attribute[0].s = b"bpkirm,kijcm->bpjkirc"


def doubled_poses(model: onnx.ModelProto, einsum: onnx.NodeProto) -> None:
    twice = helper.make_node("Add", [einsum.input[0]] * 2, ["twice"], "class_caps/votes/add_1")
    model.graph.node.insert(list(model.graph.node).index(einsum), twice)
    einsum.input[0] = "twice"


def computed_matrices(model: onnx.ModelProto, einsum: onnx.NodeProto) -> None:
    model.graph.node.insert(0, helper.make_node("Identity", [einsum.input[1]], ["computed"], "computed"))
    einsum.input[1] = "computed"


def flat_matrices(model: onnx.ModelProto, einsum: onnx.NodeProto) -> None:
    [tensor] = (one for one in model.graph.initializer if one.name == einsum.input[1])
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).reshape(-1, 16), tensor.name))


@pytest.mark.parametrize("change", [changed_equation, doubled_poses, computed_matrices, flat_matrices])
def test_a_layer_with_votes_of_another_kind_stays_as_it_is(change):
    _, model, manifest = matrix_network("the paper's")
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    [einsum] = (node for node in changed.graph.node if node.name == "class_caps/votes/einsum_2")
    change(changed, einsum)
    moments = em_moments(changed, stated_architecture(manifest))
    assert [node.name for node in moments.graph.node if node.op_type == "Einsum"] == [einsum.name]


@pytest.mark.parametrize(
    "name", ["official, calibrated", pytest.param("mixing proportions, vectors", marks=pytest.mark.long)]
)
def test_variants_of_routing_stay_as_they_are(name):
    _, model, manifest = matrix_network(name)
    with pytest.raises(NotOptimizableError, match="no layer has routing as capsnet-export writes it"):
        em_moments(model, stated_architecture(manifest))


@pytest.mark.parametrize("value", ["votes", "routing/squares_2"])
def test_other_readers_of_what_would_be_gone_keep_a_layer_as_it_is(value):
    _, model, manifest = matrix_network("2 iterations, a softer density")
    read = onnx.ModelProto()
    read.CopyFrom(model)
    for path in ("conv_caps/0", "conv_caps/1", "class_caps"):
        read.graph.node.append(
            helper.make_node("Identity", [f"{path}/{value}"], [f"{path}/read"], f"{path}/read")
        )
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
