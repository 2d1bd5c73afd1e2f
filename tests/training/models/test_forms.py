"""Networks get their faster forms in one place, and are the same networks."""

import pytest
import torch

from training.config import Block, CapsNetConfig, CnnConfig, MatrixCapsNetConfig
from training.models.baselines import BaselineCnn
from training.models.build import build
from training.models.capsnet import CapsNet
from training.models.capsules import RoutingByAgreement
from training.models.convolution import Convolution
from training.models.cpu.class_capsules import CpuClassCapsules
from training.models.cpu.convolution import CpuConvolution
from training.models.cuda import class_capsules
from training.models.cuda.class_capsules import CudaClassCapsules
from training.models.em import EMRouting
from training.models.forms import FORMS
from training.models.fused_matrix_capsules import FusedMatrixCapsules
from training.models.matrix_capsnet import MatrixCapsNet

PLAIN = {
    CapsNet: CapsNetConfig(conv_channels=4, primary_types=1, classes=3, class_dim=2, decoder_hidden=(5,)),
    MatrixCapsNet: MatrixCapsNetConfig(
        "matrix-capsnet",
        image_channels=1,
        conv_channels=4,
        primary_types=2,
        conv_caps_types=(2, 2),
        classes=3,
    ),
    BaselineCnn: CnnConfig("cnn", classes=3, blocks=(Block(channels=2, kernel=3),)),
}


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_a_built_network_has_every_faster_form_that_there_is(kind):
    plain, built = kind(PLAIN[kind]), build(PLAIN[kind])
    assert [type(layer) for layer in built.modules()] == [
        FORMS.get(type(layer), type(layer)) for layer in plain.modules()
    ]
    assert any(isinstance(layer, CpuConvolution) for layer in built.modules())
    if kind is MatrixCapsNet:
        assert isinstance(built.class_caps, FusedMatrixCapsules)
    assert isinstance(built, kind)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_it_has_the_plain_networks_weights_and_answers(kind):
    config = PLAIN[kind]
    plain, built = kind(config), build(config)
    built.load_state_dict(plain.state_dict())
    pixels = torch.rand(2, config.image_channels, config.image_size, config.image_size)
    found, expected = (network(pixels) for network in (built, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)  # routing multiplies what rounding does


def test_a_network_of_the_papers_own_layers_is_plain():
    layers = list(CapsNet(PLAIN[CapsNet]).modules())
    assert any(type(layer) is Convolution for layer in layers)
    assert not any(isinstance(layer, CpuConvolution | CpuClassCapsules) for layer in layers)


@pytest.mark.parametrize("count", [1, 1000])
def test_lower_capsules_of_images_of_another_size_are_refused_by_the_kernels_for_cuda(count):
    """They would read and write what is not theirs."""
    layer = build(PLAIN[CapsNet]).class_caps
    assert isinstance(layer, CudaClassCapsules)
    with pytest.raises(ValueError, match=rf"an image makes {count} of 8: it has another size"):
        layer.fused(torch.rand(2, count, 8))


@pytest.mark.parametrize(
    ("kind", "own", "triton"),
    [
        (CapsNet, RoutingByAgreement, False),
        (CapsNet, RoutingByAgreement, True),
        (MatrixCapsNet, EMRouting, False),
    ],
)
def test_a_routing_of_a_class_of_its_own_is_the_one_that_is_trained(kind, own, triton, monkeypatch):
    """The kernels compute what the papers' routing does, whatever a researcher has changed in hers."""
    monkeypatch.setattr(class_capsules, "runs_triton", lambda _: triton)
    routed = []

    class Own(own):
        def forward(self, votes, *others):
            routed.append(self)
            return super().forward(votes, *others)

    network = build(PLAIN[kind])
    layers = [layer for layer in network.modules() if isinstance(layer, own)]
    assert layers
    for layer in layers:
        layer.__class__ = Own
    size = network.config.image_size
    network(torch.rand(2, network.config.image_channels, size, size))
    assert routed == layers
