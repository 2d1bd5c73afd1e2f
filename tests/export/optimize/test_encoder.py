"""The parts of an encoder are the weights that its model has; what the graph lacks is named."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from export.contract.architecture import capsnet_architecture
from export.contract.manifest import newest_version, read_manifest
from export.optimize.encoder import NotOptimizableError, read_encoder
from export.optimize.half_precision import half_precision
from export.to_onnx import trace_encoder
from tests.support.paths import ROOT
from tests.support.random_encoders import (
    CONFIGURATIONS,
    SMALL,
    architecture_of,
    encoder_parts,
    oblong_parts,
    random_encoder,
)
from training.config import CapsNetConfig, StemConvolution
from training.models.capsnet import CapsNet

MODELS = ROOT / "models"


def config_of(name):
    return CapsNetConfig(**(SMALL | CONFIGURATIONS[name]))


@pytest.fixture
def plain() -> onnx.ModelProto:
    """A copy, to be changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(random_encoder("everything"))
    return copy


def weights_of(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize(("model", "side"), [("capsnet-mnist", 6), ("capsnet-multimnist", 4)])
def test_the_manifest_of_a_shipped_capsnet_states_its_architecture(model, side):
    bundle = newest_version(MODELS / model)
    manifest = read_manifest(bundle)
    architecture = capsnet_architecture(manifest)
    encoder = read_encoder(onnx.load(bundle / manifest.graphs["encoder"].file), architecture)
    assert encoder.poses == (10, 16)
    assert encoder.iterations == 3
    assert encoder.primary.output_size == (side, side)


def test_matrix_capsules_have_no_architecture_of_a_capsnet():
    assert capsnet_architecture(read_manifest(newest_version(MODELS / "matrix-capsnet-toys"))) is None


@pytest.mark.parametrize("lost", ["kernel", "classes", "routing_iterations"])
def test_a_manifest_that_does_not_state_the_architecture_in_full_has_none(lost):
    manifest = read_manifest(newest_version(MODELS / "capsnet-mnist"))
    parameters = {name: value for name, value in manifest.parameters.items() if name != lost}
    assert capsnet_architecture(manifest.model_copy(update={"parameters": parameters})) is None


def test_a_graph_that_still_has_a_primary_coupling_has_none():
    manifest = read_manifest(newest_version(MODELS / "capsnet-mnist"))
    coupled = manifest.parameters | {"primary_coupling": True}
    assert capsnet_architecture(manifest.model_copy(update={"parameters": coupled})) is None


def test_sizes_are_those_of_the_network():
    config = CapsNetConfig(image_size=36, stem=(StemConvolution(8, 5, 2), StemConvolution(8, 3)), kernel=4)
    architecture = architecture_of(config)
    assert architecture.strides == {"stem.0": 2, "stem.1": 1, "conv1": 1, "primary_caps.conv": 2}
    assert architecture.sizes == {"stem.0": 36, "stem.1": 16, "conv1": 14, "primary_caps.conv": 11}
    assert config.primary_size == (11 - 4) // 2 + 1


@pytest.mark.parametrize(
    ("name", "iterations", "none_of_the_above", "priors", "bias"),
    [
        ("the paper's", 3, False, False, False),
        ("everything", 2, True, True, True),
        ("none of the above, 5 iterations", 5, True, False, False),
        ("1 iteration", 1, True, False, True),
        ("many priors", 3, True, True, False),
    ],
)
def test_the_options_are_those_of_the_model(name, iterations, none_of_the_above, priors, bias):
    encoder = encoder_parts(name)
    assert encoder.iterations == iterations
    assert encoder.none_of_the_above == none_of_the_above
    assert (encoder.priors is not None) == priors
    assert (encoder.bias is not None) == bias


def test_the_weights_are_those_of_the_graph():
    encoder, weights = encoder_parts("everything"), weights_of(random_encoder("everything"))
    np.testing.assert_array_equal(encoder.conv1.weight, weights["conv1.weight"])
    np.testing.assert_array_equal(encoder.conv1.bias, weights["conv1.bias"])
    np.testing.assert_array_equal(encoder.primary.weight, weights["primary_caps.conv.weight"])
    np.testing.assert_array_equal(encoder.primary.bias, weights["primary_caps.conv.bias"])
    np.testing.assert_array_equal(encoder.votes, weights["class_caps.weight"])
    np.testing.assert_array_equal(encoder.priors, weights["class_caps.routing.priors"])
    np.testing.assert_array_equal(encoder.bias, weights["class_caps.routing.bias"])
    assert encoder.poses == (4, 5)


def test_a_bias_of_zeros_which_export_leaves_out_is_one_of_zeros():
    config = config_of("the paper's")
    model = CapsNet(config).eval()
    torch.nn.init.zeros_(model.conv1.bias)
    graph = trace_encoder(model)
    assert "conv1.bias" not in weights_of(graph)
    encoder = read_encoder(graph, architecture_of(config))
    np.testing.assert_array_equal(encoder.conv1.bias, np.zeros(5, np.float32))
    np.testing.assert_array_equal(encoder.primary.bias, weights_of(graph)["primary_caps.conv.bias"])


def test_each_convolution_of_a_stem_is_a_part():
    convolutions = encoder_parts("a stem").convolutions
    assert list(convolutions) == ["stem/0", "stem/1", "conv1", "primary_caps/conv"]
    assert [found.size for found in convolutions.values()] == [(25, 25), (12, 12), (11, 11), (8, 8)]


def test_outputs_of_oblong_convolutions_are_counted_along_each_axis():
    encoder = oblong_parts()
    assert encoder.conv1.output_size == (12, 19)
    assert encoder.primary.output_size == (9, 5)


def test_the_prologue_leads_to_conv1():
    assert [n.op_type for n in encoder_parts("the paper's").prologue] == ["Transpose"]
    standardized = encoder_parts("everything").prologue
    assert standardized[0].input[0] == "pixels"
    assert standardized[-1].output[0] == "x"


def refusal(model, config=None):
    with pytest.raises(NotOptimizableError) as refused:
        read_encoder(model, architecture_of(config or config_of("everything")))
    return str(refused.value)


def test_a_decoder_is_refused_with_what_it_lacks():
    decoder = onnx.load(newest_version(MODELS / "capsnet-mnist") / "decoder.onnx")
    assert refusal(decoder) == "the graph has no weight conv1.weight"


def test_priors_of_one_iteration_which_export_makes_a_constant_are_missed():
    config = replace(config_of("1 iteration"), learned_priors=True)
    encoder = trace_encoder(CapsNet(config).eval())
    assert refusal(encoder, config) == "the graph has no weight class_caps.routing.priors"


def test_a_graph_in_half_precision_is_refused():
    assert refusal(half_precision(random_encoder("everything"))) == "the graph has no weight conv1.weight"


def test_weights_in_another_type_are_refused(plain):
    for tensor in plain.graph.initializer:
        if tensor.name == "class_caps.weight":
            tensor.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
            )
    assert refusal(plain) == "class_caps.weight is float16, not float32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 3}, "class_caps.weight is [75, 6, 20]; by the manifest it is [75, 6, 15]"),
        ({"image_size": 27}, "class_caps.weight is [75, 6, 20]; by the manifest it is [108, 6, 20]"),
        ({"primary_dim": 3}, "class_caps.weight is [75, 6, 20]; by the manifest it is [150, 3, 20]"),
    ],
)
def test_a_manifest_that_states_another_network_is_refused(plain, change, message):
    assert refusal(plain, replace(config_of("everything"), **change)) == message


def test_an_encoder_whose_convolution_reads_the_input_is_refused(plain):
    names = [node.name for node in plain.graph.node]
    del plain.graph.node[: names.index("conv1")]
    assert refusal(plain) == "the graph has no node conv1 behind others"
