from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from export.parity import ParityError, check_parity, run_onnx, with_iterations
from export.to_onnx import TRACED_BATCH, to_onnx, trace, trace_decoder, trace_encoder
from training.config import CapsNetConfig
from training.models.capsnet import CapsNet
from training.models.graph_names import NOTE, name_in_graph

TINY = CapsNetConfig(conv_channels=4, primary_types=2, classes=3, class_dim=4, decoder_hidden=(8,))


@pytest.fixture(scope="module")
def model():
    return CapsNet(TINY).eval()


@pytest.fixture(scope="module")
def encoder(model):
    return trace_encoder(model)


@pytest.fixture(scope="module")
def decoder(model):
    return trace_decoder(model)


def shapes(values):
    return {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] for value in values
    }


def test_the_encoder_takes_pixels_and_gives_probabilities_and_poses(encoder):
    assert shapes(encoder.graph.input) == {"pixels": ["batch", 28, 28, 1]}
    assert shapes(encoder.graph.output) == {"probabilities": ["batch", 3], "poses": ["batch", 3, 4]}


def test_the_decoder_takes_poses_and_a_mask_and_gives_pixels(decoder):
    assert shapes(decoder.graph.input) == {"poses": ["batch", 3, 4], "mask": ["batch", 3]}
    assert shapes(decoder.graph.output) == {"reconstruction": ["batch", 28, 28, 1]}


def subgraphs(node):
    return [a for a in node.attribute if a.type in {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}]


@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_routing_is_unrolled_without_control_flow(iterations):
    graph = trace_encoder(CapsNet(replace(TINY, routing_iterations=iterations))).graph
    assert not {node.op_type for node in graph.node} & {"Loop", "If", "Scan"}
    assert not [node.name for node in graph.node if subgraphs(node)]
    softmaxes = [node for node in graph.node if node.op_type == "Softmax"]
    assert len(softmaxes) == iterations


def test_no_shape_is_computed_at_run_time(encoder, decoder):
    operators = {node.op_type for graph in (encoder, decoder) for node in graph.graph.node}
    assert not operators & {"Shape", "Size", "NonZero", "Range", "Expand"}


def test_only_the_batch_axis_is_free(encoder, decoder):
    for graph in (encoder.graph, decoder.graph):
        known = shapes([*graph.input, *graph.output, *graph.value_info])
        produced = {name for node in graph.node for name in node.output}
        assert produced <= known.keys(), "every shape is inferred"
        assert {d for shape in known.values() for d in shape if isinstance(d, str)} == {"batch"}


def test_values_are_named_in_the_papers_terms(encoder):
    produced = [name for node in encoder.graph.node for name in node.output]
    expected = ["conv1", "primary_caps/s", "primary_caps/u", "class_caps/u_hat"]
    for iteration in (1, 2, 3):
        letters = "csv" if iteration == 1 else "abcsv"
        expected += [f"class_caps/routing/{letter}_{iteration}" for letter in letters]
    expected.remove("class_caps/routing/v_3")  # which is the output `poses`
    assert set(expected) <= set(produced)


def test_steps_towards_a_value_are_named_after_it(encoder):
    produced = [name for node in encoder.graph.node for name in node.output]
    first = produced.index("class_caps/routing/a_2/unsqueeze_0")
    assert produced[first : first + 5] == [
        "class_caps/routing/a_2/unsqueeze_0",
        "class_caps/routing/a_2/matmul_1",
        "class_caps/routing/a_2",
        "class_caps/routing/b_2",
        "class_caps/routing/c_2",
    ]


def test_values_of_the_decoder_are_named_as_well(decoder):
    produced = {name for node in decoder.graph.node for name in node.output}
    assert {"decoder/masked", "decoder/x_1", "decoder/x_2", "decoder/reconstruction"} <= produced


class Doubling(nn.Module):
    """Its variables have other names than its values."""

    input_names, output_names = ("x",), ("y",)

    def forward(self, x):
        doubled = 2 * x
        for _ in range(2):
            doubled = doubled * x + 1
            name_in_graph(power=doubled)
        return doubled.relu()


def test_a_value_has_the_name_that_the_model_gives_it_whatever_the_variable_is_called():
    graph = to_onnx(Doubling(), (torch.rand(TRACED_BATCH, 3),)).graph
    assert [name for node in graph.node for name in node.output] == [
        "power_1/mul_0",
        "power_1/mul_1",
        "power_1",
        "power_2/mul_0",
        "power_2",
        "y",
    ]


def test_naming_a_value_does_nothing_where_no_graph_is_traced():
    x = torch.rand(2, 3, requires_grad=True)
    traced = torch.fx.experimental.proxy_tensor.make_fx(Doubling())(x)
    assert not [node for node in traced.graph.nodes if node.target is NOTE]


def test_no_value_keeps_the_tracers_name(encoder, decoder):
    known = (
        "channels_first",
        "conv1",
        "features",
        "primary_caps",
        "class_caps",
        "decoder",
        "hidden",
        "pixels",
    )
    ends = {"probabilities", "poses", "reconstruction", "mask"}
    for graph in (encoder.graph, decoder.graph):
        names = [name for node in graph.node for name in (node.name, *node.input, *node.output)]
        assert not [name for name in names if not name.startswith(known) and name.split("/")[0] not in ends]


def test_names_are_unique(encoder, decoder):
    for graph in (encoder.graph, decoder.graph):
        produced = [name for node in graph.node for name in node.output]
        produced += [value.name for value in [*graph.input, *graph.initializer]]
        assert len(produced) == len(set(produced))


def test_nothing_of_the_exporting_machine_is_kept(encoder):
    content = encoder.SerializeToString()
    assert b".py" not in content
    assert b"/site-packages" not in content


def test_the_graph_states_its_opset_and_holds_its_weights(encoder):
    assert [(entry.domain, entry.version) for entry in encoder.opset_import] == [("", 20)]
    assert all(t.data_location == onnx.TensorProto.DEFAULT for t in encoder.graph.initializer)


def test_normalization_is_inside_the_graph():
    """A standardizing model gives the same answer for brighter pixels with less contrast."""
    encoder = trace_encoder(CapsNet(replace(TINY, standardize_per_image=True)))
    pixels = torch.rand(2, 28, 28, 1).numpy()
    for found, expected in zip(
        run_onnx(encoder, pixels=0.5 + 0.4 * pixels), run_onnx(encoder, pixels=pixels), strict=True
    ):
        torch.testing.assert_close(torch.from_numpy(found), torch.from_numpy(expected), atol=1e-5, rtol=0)


LEARNED = {"learned_priors": True, "none_of_the_above": True, "capsule_bias": True}


def as_if_trained(config):
    """A network whose poses are as long as trained ones, with priors and a bias that are not 0."""
    model = CapsNet(config).eval()
    routing = model.class_caps.routing
    with torch.no_grad():
        model.class_caps.weight *= 30
    for parameter in (routing.priors, routing.bias):
        if parameter is not None:
            nn.init.normal_(parameter)
    return model


def pictures(config):
    return torch.rand(32, config.image_size, config.image_size, config.image_channels).numpy()


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": 24, "image_channels": 3, "primary_dim": 6},
        {"primary_coupling": True, "official_initialization": True, "capsule_bias": True},
    ],
)
def test_every_variant_exports_and_agrees_with_pytorch(own_iterations_only, change):
    model = as_if_trained(replace(TINY, **change))
    assert check_parity(model, trace(model), pictures(model.config)) <= 1e-5


def test_learned_priors_and_a_bias_agree_at_every_number_of_iterations():
    model = as_if_trained(replace(TINY, **LEARNED))
    assert check_parity(model, trace(model), pictures(model.config)) <= 1e-5


@pytest.mark.parametrize("part", ["priors", "bias"])
def test_a_graph_without_the_learned_priors_or_bias_does_not_agree(own_iterations_only, part):
    model = as_if_trained(replace(TINY, **LEARNED))
    other = deepcopy(model)
    nn.init.zeros_(getattr(other.class_caps.routing, part))
    with pytest.raises(ParityError):
        check_parity(model, trace(other), pictures(model.config))


def test_a_graph_of_fewer_iterations_does_not_agree(own_iterations_only):
    model = as_if_trained(TINY)
    with pytest.raises(ParityError):
        check_parity(model, trace(with_iterations(model, 2)), pictures(model.config))


class ReshapesAConstant(nn.Module):
    """Of more elements than the exporter folds by itself, so that the node has two constants."""

    input_names, output_names = ("x",), ("y",)

    def forward(self, x):
        return x + torch.arange(100.0).repeat_interleave(100).reshape(1, 10000)


def test_each_constant_of_a_node_has_its_own_name():
    x = torch.rand(2, 10000)
    graph = to_onnx(ReshapesAConstant(), (x,))
    (reshape,) = (node for node in graph.graph.node if node.op_type == "Reshape")
    assert len({tensor.name for tensor in graph.graph.initializer} & set(reshape.input)) == 2
    np.testing.assert_array_equal(run_onnx(graph, x=x.numpy())[0], ReshapesAConstant()(x).numpy())
