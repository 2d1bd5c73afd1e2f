"""What is read from a plain encoder is what its model has, and what is no such encoder is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from export.contract.manifest import newest_version
from export.optimize.half_precision import half_precision
from export.optimize.plain_encoder import NotOptimizableError, read_convolution, read_encoder
from tests.support.random_encoders import oblong_encoder, random_encoder, with_weights
from tests.support.tiny_bundle import encoder_model


@pytest.fixture
def plain() -> onnx.ModelProto:
    """A copy, to be changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(random_encoder("everything"))
    return copy


def weights_of(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def node(model, name):
    return next(node for node in model.graph.node if node.name == name)


def attribute(model, name, key):
    return next(a for a in node(model, name).attribute if a.name == key)


@pytest.mark.parametrize(
    ("name", "iterations", "none_of_the_above", "priors", "bias"),
    [
        ("the paper's", 3, False, False, False),
        ("everything", 2, True, True, True),
        ("none of the above, 5 iterations", 5, True, False, False),
        ("priors, 1 iteration", 1, True, True, True),
        ("many priors", 3, True, True, False),
    ],
)
def test_the_options_are_those_of_the_model(name, iterations, none_of_the_above, priors, bias):
    encoder = read_encoder(random_encoder(name))
    assert encoder.iterations == iterations
    assert encoder.none_of_the_above == none_of_the_above
    assert (encoder.priors is not None) == priors
    assert (encoder.bias is not None) == bias
    assert encoder.epsilon == pytest.approx(1e-7, rel=1e-6)


def test_the_weights_are_those_of_the_graph():
    model = random_encoder("everything")
    encoder, weights = read_encoder(model), weights_of(model)
    np.testing.assert_array_equal(encoder.conv1.weight, weights["conv1.weight"])
    np.testing.assert_array_equal(encoder.conv1.bias, weights["conv1.bias"])
    np.testing.assert_array_equal(encoder.primary.weight, weights["primary_caps.conv.weight"])
    np.testing.assert_array_equal(encoder.primary.bias, weights["primary_caps.conv.bias"])
    np.testing.assert_array_equal(encoder.votes, weights["class_caps.weight"])
    np.testing.assert_array_equal(encoder.priors, weights["class_caps.routing.priors"])
    np.testing.assert_array_equal(encoder.bias, weights["class_caps.routing.bias"])
    assert encoder.poses == (4, 5)


def test_sizes_and_strides_are_those_of_the_graph():
    encoder = read_encoder(oblong_encoder())
    assert encoder.channels == 2
    assert (encoder.conv1.size, encoder.conv1.strides, encoder.conv1.output_size) == (
        (27, 23),
        (2, 1),
        (12, 19),
    )
    assert (encoder.primary.size, encoder.primary.strides) == ((12, 19), (1, 3))
    assert encoder.primary.output_size == (9, 5)


def test_the_prologue_leads_to_conv1():
    assert [n.op_type for n in read_encoder(random_encoder("the paper's")).prologue] == ["Transpose"]
    standardized = read_encoder(random_encoder("everything")).prologue
    assert standardized[0].input[0] == "pixels"
    assert standardized[-1].output[0] == "x"


def test_of_priors_that_the_exporter_made_a_constant_of_their_softmax_is_kept():
    model = random_encoder("priors, 1 iteration")
    encoder = read_encoder(model)
    e = np.exp(encoder.priors.astype(np.float64))
    c = weights_of(model)["class_caps/routing/s/matmul_0/constant_0"][:, 0]
    np.testing.assert_allclose(e / (e.sum(axis=0) + 1), c, rtol=1e-6, atol=0)


def test_priors_that_the_exporter_padded_are_read():
    """Between few and many there are numbers of them for which it computes that alone."""
    model, whole = onnx.ModelProto(), random_encoder("many priors")
    model.CopyFrom(whole)
    pad = node(model, "class_caps/routing/c_1/pad_0")
    padded = np.pad(weights_of(model)["class_caps.routing.priors"], ((0, 1), (0, 0)))
    model.graph.initializer.append(numpy_helper.from_array(padded, pad.output[0]))
    model.graph.node.remove(pad)
    encoder = read_encoder(model)
    assert encoder.none_of_the_above
    np.testing.assert_array_equal(encoder.priors, read_encoder(whole).priors)


def refusal(model):
    with pytest.raises(NotOptimizableError) as refused:
        read_encoder(model)
    return str(refused.value)


def test_a_decoder_is_refused_with_what_it_lacks():
    message = refusal(onnx.load(newest_version(Path("models/capsnet-mnist")) / "decoder.onnx"))
    assert message == "no encoder of dynamic routing: it has no class_caps/u_hat, conv1, primary_caps/conv"


def test_an_encoder_without_capsules_is_refused():
    assert "it has no class_caps/u_hat" in refusal(encoder_model(np.random.default_rng(0), 3, 4))


def test_a_graph_in_half_precision_is_refused():
    assert "no encoder of dynamic routing" in refusal(half_precision(random_encoder("the paper's")))


def test_a_convolution_in_half_precision_is_refused(plain):
    half = half_precision(plain)
    weights = {tensor.name: tensor for tensor in half.graph.initializer}
    with pytest.raises(NotOptimizableError, match="conv1 has weights in float16, not float32"):
        read_convolution(node(half, "conv1"), weights, {node(half, "conv1").input[0]: (0, 3, 25, 25)})


@pytest.mark.parametrize("name", ["conv1", "primary_caps/conv"])
@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("group", 5, "has group 5"),
        ("dilations", [1, 2], r"has dilations [1, 2]"),
        ("pads", [0, 1, 0, 0], "has pads [0, 1, 0, 0]; an encoder's has none"),
        ("auto_pad", "SAME_UPPER", "has auto_pad b'SAME_UPPER'"),
    ],
)
def test_a_convolution_of_another_kind_is_refused(plain, name, key, values, message):
    attribute(plain, name, key).CopyFrom(helper.make_attribute(key, values))
    assert refusal(plain) == f"{name} {message}"


@pytest.mark.parametrize("operator", ["Tanh", "Sigmoid", "Identity"])
def test_another_activation_behind_conv1_is_refused(plain, operator):
    node(plain, "features").op_type = operator
    assert refusal(plain) == f"no encoder of dynamic routing: features is {operator}, not Relu"


def test_an_activation_behind_the_primary_convolution_is_refused(plain):
    place = list(plain.graph.node).index(node(plain, "primary_caps/conv"))
    after = plain.graph.node[place + 1]
    plain.graph.node.insert(place + 1, helper.make_node("Relu", [after.input[0]], ["relu"], name="relu"))
    after.input[0] = "relu"
    assert refusal(plain) == "no encoder of dynamic routing: relu is Relu, not Reshape"


def test_a_node_behind_the_probabilities_is_refused(plain):
    plain.CopyFrom(random_encoder("the paper's"))
    plain.graph.node.append(helper.make_node("Relu", ["poses"], ["more"], name="more"))
    assert refusal(plain) == "no encoder of dynamic routing: 65 nodes from conv1 on, not 64"


def test_other_probabilities_are_refused(plain):
    node(plain, "probabilities").op_type = "ReduceL1"
    assert refusal(plain) == "no encoder of dynamic routing: probabilities is ReduceL1, not ReduceL2"


def test_a_softmax_over_the_lower_capsules_is_refused(plain):
    attribute(plain, "class_caps/routing/c/softmax_1", "axis").i = -1
    assert "class_caps/routing/c/softmax_1 is Softmax -1, not Softmax -2" in refusal(plain)


def test_a_routing_that_keeps_no_agreement_is_refused(plain):
    """Without the logits' addition the coupling coefficients would be those of the last agreement alone."""
    node(plain, "class_caps/routing/b").op_type = "Mul"
    assert "class_caps/routing/b is Mul, not Add" in refusal(plain)


@pytest.mark.parametrize(
    ("name", "number"), [("primary_caps/u/add_2/constant_1", 0.5), ("x/pow_2/constant_1", 3.0)]
)
def test_a_squash_with_other_numbers_is_refused(name, number):
    """|s|^2 / (0.5 + |s|^2) is in use elsewhere."""
    model = with_weights(random_encoder("everything"), {name: lambda _: number})
    assert "its squash has other numbers" in refusal(model)


def test_priors_under_another_name_are_refused(plain):
    for tensor in plain.graph.initializer:
        if tensor.name == "class_caps.routing.priors":
            tensor.name = "logits"
    node(plain, "class_caps/routing/b").input[0] = "logits"
    assert refusal(plain) == "no encoder of dynamic routing: its initial logits are not to be found"


def test_an_encoder_whose_convolution_reads_the_input_is_refused(plain):
    del plain.graph.node[: list(plain.graph.node).index(node(plain, "conv1"))]
    assert "conv1 reads the input as it is" in refusal(plain)


def test_an_encoder_with_another_output_is_refused(plain):
    plain.graph.output.append(helper.make_empty_tensor_value_info("features"))
    assert "its outputs are not probabilities and poses" in refusal(plain)


def test_sizes_that_are_not_known_are_refused(plain):
    del plain.graph.value_info[:]
    assert refusal(plain).endswith("its input's size is not known, or its weights are not constant")


def test_a_fixed_batch_is_read_as_a_free_one_is(plain):
    before = read_encoder(plain)
    plain.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 7
    assert read_encoder(plain).conv1.size == before.conv1.size
