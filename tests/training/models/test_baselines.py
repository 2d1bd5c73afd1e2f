from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from export.to_onnx import to_onnx
from training.config import Block, CapsNetConfig, CnnConfig, load_preset
from training.loss.losses import sigmoid_loss, softmax_loss
from training.models.baselines import BaselineCnn
from training.models.capsnet import CapsNet

PRESETS = ("mnist-cnn", "multimnist-cnn", "affnist-cnn", "affnist-small-cnn")


def parameters(preset: str) -> int:
    config = load_preset(preset).model
    with torch.device("meta"):  # shapes without memory
        model = CapsNet(config) if isinstance(config, CapsNetConfig) else BaselineCnn(config)
    return sum(parameter.numel() for parameter in model.parameters())


def narrow(exclusive: bool = True, dropout: float = 0) -> BaselineCnn:
    blocks = (Block(6, 5, True), Block(4, 3, True))
    return BaselineCnn(
        CnnConfig(
            "cnn",
            image_size=9,
            classes=3,
            blocks=blocks,
            hidden=(16, 8),
            dropout=dropout,
            exclusive=exclusive,
        )
    )


def bars(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures [count, 1, 9, 9] of one of three bars, at random places of its own, and which it is."""
    labels = torch.arange(count) % 3
    pixels = torch.rand(count, 1, 9, 9) * 0.1
    pixels[labels == 0, :, 3] = 1
    pixels[labels == 1, :, :, 4] = 1
    pixels[labels == 2, :, 2:5, 6:8] = 1
    return pixels, labels


def test_the_mnist_network_has_the_papers_parameter_count():
    assert parameters("mnist-cnn") == 35_445_522  # 35.4M


def test_the_multimnist_network_has_the_papers_parameter_count():
    assert parameters("multimnist-cnn") == 24_563_978  # 24.56M


def test_the_affnist_network_has_as_many_parameters_as_capsnet_to_one_percent():
    found, capsnet = parameters("affnist-cnn"), parameters("affnist")
    assert (found, capsnet) == (13_484_826, 13_475_648)
    assert abs(found / capsnet - 1) < 0.01


def test_the_small_affnist_network_has_as_many_parameters_as_the_small_capsnet_to_one_percent():
    found, capsnet = parameters("affnist-small-cnn"), parameters("affnist-small")
    assert (found, capsnet) == (6_527_370, 6_534_592)


def test_the_affnist_network_pools_and_drops_out():
    config = load_preset("affnist-cnn").model
    assert any(block.pooled for block in config.blocks)
    assert config.dropout > 0


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("size", "channels", "classes"), [(32, 3, 10), (33, 2, 5), (24, 1, 2)])
def test_any_size_channels_and_classes_give_one_logit_per_class(preset, size, channels, classes):
    config = replace(load_preset(preset).model, image_size=size, image_channels=channels, classes=classes)
    with torch.device("meta"):
        logits = BaselineCnn(config)(torch.empty(2, channels, size, size))
    assert logits.shape == (2, classes)


def test_training_on_a_cpu_computes_what_torchs_own_layers_do():
    model = narrow()
    pixels = torch.rand(5, 1, 9, 9)
    x = pixels
    for convolution in model.convolutions:
        x = F.conv2d(x, convolution.weight, convolution.bias, padding="same").relu()
        x = F.max_pool2d(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), 2)  # zeros never win over a ReLU
    plain = nn.Sequential(nn.Flatten(), model.hidden[0], nn.ReLU(), model.hidden[1], nn.ReLU(), model.classes)
    torch.testing.assert_close(model(pixels), plain(x), atol=1e-5, rtol=1e-5)


def test_the_loss_falls_where_one_class_is_present():
    assert _loss_after_training(narrow(exclusive=True)) < 0.1


def test_the_loss_falls_where_each_class_stands_alone():
    assert _loss_after_training(narrow(exclusive=False)) < 0.1


def _loss_after_training(model: BaselineCnn) -> float:
    """What is left of the first loss on a problem of three bars."""
    pixels, labels = bars(48)
    targets = F.one_hot(labels, 3).float()
    loss_of = softmax_loss if model.config.exclusive else sigmoid_loss
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = loss_of(model(pixels), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] / losses[0]


def test_every_parameter_has_a_finite_gradient_that_is_not_zero():
    model = narrow()
    pixels, labels = bars(12)
    softmax_loss(model(pixels), F.one_hot(labels, 3).float()).backward()
    for parameter in model.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


def test_dropout_acts_in_training_only():
    model, pixels = narrow(dropout=0.5), torch.rand(8, 1, 9, 9)
    assert not torch.equal(model(pixels), model(pixels))
    model.eval()
    torch.testing.assert_close(model(pixels), model(pixels), rtol=0, atol=0)


def test_probabilities_sum_to_one_where_one_class_is_present():
    probabilities = narrow(exclusive=True).probabilities(torch.randn(6, 3))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(6))


def test_probabilities_are_each_their_own_where_several_may_be_present():
    probabilities = narrow(exclusive=False).probabilities(torch.tensor([[10.0, 10.0, -10.0]]))
    torch.testing.assert_close(probabilities, torch.tensor([[1.0, 1.0, 0.0]]), atol=1e-4, rtol=0)


class LogitsGraph(nn.Module):
    input_names = ("pixels",)
    output_names = ("logits",)

    def __init__(self, model: BaselineCnn):
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixels)


def test_the_exported_graph_gives_the_same_logits_at_another_batch_size():
    model = narrow(dropout=0.5).eval()
    graph = to_onnx(LogitsGraph(model), (torch.rand(2, 1, 9, 9),))
    pixels = torch.rand(5, 1, 9, 9)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    [logits] = session.run(["logits"], {"pixels": pixels.numpy()})
    np.testing.assert_allclose(logits, model(pixels).detach().numpy(), atol=1e-5)


def test_a_network_that_standardizes_its_images_does_not_see_how_bright_they_are():
    torch.manual_seed(0)
    model = BaselineCnn(load_preset("smallnorb-cnn").model).eval()
    pixels = torch.rand(2, 2, 32, 32)
    torch.testing.assert_close(model(0.5 * pixels + 0.2), model(pixels), rtol=0, atol=1e-4)
