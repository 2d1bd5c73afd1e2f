from dataclasses import replace

import onnx
import pytest
import torch

from export.fold import fold_coupling
from export.optimize.encoder import read_encoder
from export.parity import ParityError, check_parity
from export.to_onnx import Graphs, trace_encoder
from tests.support.random_encoders import architecture_of
from training.config import CapsNetConfig
from training.models.capsnet import CapsNet

TINY = CapsNetConfig(
    image_size=20,
    conv_channels=4,
    primary_types=3,
    classes=3,
    class_dim=4,
    routing_iterations=1,
    capsule_bias=True,
    decoder_hidden=(),
)
COUPLED = replace(TINY, primary_coupling=True)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return CapsNet(COUPLED).eval()


@pytest.fixture(scope="module")
def encoder(model):
    return trace_encoder(model)


def test_a_folded_network_gives_what_the_network_gives(model):
    folded, pixels = fold_coupling(model), torch.rand(4, 1, 20, 20)
    assert folded.config == TINY
    torch.testing.assert_close(folded(pixels), model(pixels))


def test_folding_leaves_the_network_as_it_was(model):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    fold_coupling(model)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)


def test_a_network_without_a_coupling_is_its_own_folded_form():
    plain = CapsNet(TINY)
    assert fold_coupling(plain) is plain


def structure(graph: onnx.ModelProto) -> list[tuple[str, str, list[str], list[str]]]:
    return [(node.name, node.op_type, [*node.input], [*node.output]) for node in graph.graph.node]


def test_the_exported_graph_has_the_same_nodes_as_without_a_coupling(encoder):
    assert structure(encoder) == structure(trace_encoder(CapsNet(TINY).eval()))


def test_the_exported_graph_can_be_rewritten_into_a_faster_one(model, encoder):
    primary = read_encoder(encoder, architecture_of(TINY)).primary
    weight, bias = model.primary_caps.conv.weight / 3, model.primary_caps.conv.bias
    torch.testing.assert_close(torch.from_numpy(primary.weight.copy()), weight.detach())
    torch.testing.assert_close(torch.from_numpy(primary.bias.copy()), bias.detach())


def test_parity_refuses_a_graph_without_the_coupling(model):
    uncoupled = CapsNet(TINY).eval()
    uncoupled.load_state_dict(model.state_dict())
    with pytest.raises(ParityError, match="with 1 routing iteration;"):
        check_parity(model, Graphs(trace_encoder(uncoupled), None), torch.rand(32, 20, 20, 1).numpy())
