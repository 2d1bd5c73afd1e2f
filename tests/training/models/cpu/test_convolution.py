import pytest
import torch
from torch import nn
from torch.nn import functional as F

from training.models.cpu import convolution
from training.models.cpu.convolution import (
    BFLOAT16_USES,
    CpuConvolution,
    train_in_bfloat16,
    uses_of_a_weight,
    worthwhile_tile,
)
from training.models.cpu.unfolded_convolution import unfolded_conv2d_relu


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def operators(call):
    """Names of the operators that a call runs."""
    with torch.profiler.profile() as profile:
        call()
    return {event.key for event in profile.key_averages()}


def test_the_rule_takes_the_papers_convolution_at_the_batch_size_it_is_trained_with():
    assert worthwhile_tile((128, 256, 20, 20), 256, kernel=9, stride=2) == 3  # MNIST
    assert worthwhile_tile((128, 256, 16, 16), 256, kernel=9, stride=2) == 4  # 24 x 24: one tile of 4
    assert worthwhile_tile((128, 256, 28, 28), 256, kernel=9, stride=2) is not None  # MultiMNIST


@pytest.mark.parametrize(
    "shape", [(4, 256, 20, 20), (128, 16, 20, 20)], ids=["too few images", "too few channels"]
)
def test_the_rule_leaves_what_would_not_pay(shape):
    assert worthwhile_tile(shape, shape[1], kernel=9, stride=2) is None


def test_the_rule_leaves_a_kernel_that_there_is_no_algorithm_for():
    assert worthwhile_tile((128, 256, 40, 40), 256, kernel=13, stride=1) is None


def layer_and_maps(scale=1.0):
    torch.manual_seed(0)
    layer = CpuConvolution(64, 64, 9, 2, scale)
    x = random(64, 64, 20, 20, dtype=torch.float32)
    assert worthwhile_tile(x.shape, 64, 9, 2) is not None
    return layer, x


def test_training_on_a_cpu_takes_the_shorter_algorithm():
    layer, x = layer_and_maps()
    names = operators(lambda: layer(x))
    assert "_ShortConvolution" in names
    assert "aten::convolution" not in names


def test_its_result_is_that_of_a_plain_layer():
    layer, x = layer_and_maps()
    plain = nn.Conv2d(64, 64, 9, 2)
    plain.load_state_dict(layer.state_dict())
    found, expected = layer(x), plain(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    gradient = random(*found.shape, seed=1, dtype=torch.float32)
    ours = torch.autograd.grad(found, [*layer.parameters()], gradient)
    for own, other in zip(ours, torch.autograd.grad(expected, [*plain.parameters()], gradient), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-4 * other.abs().max().item())


def test_a_scaled_layer_multiplies_all_but_its_bias():
    layer, x = layer_and_maps(scale=0.25)
    expected = 0.25 * F.conv2d(x, layer.weight, stride=2) + layer.bias[:, None, None]
    found = layer(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    gradient = random(*found.shape, seed=1, dtype=torch.float32)
    ours = torch.autograd.grad(found, [*layer.parameters()], gradient)
    theirs = torch.autograd.grad(expected, [*layer.parameters()], gradient)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-4 * other.abs().max().item())


def test_a_scaled_layer_is_trained_by_the_shorter_algorithm_too():
    layer, x = layer_and_maps(scale=0.25)
    assert "_ShortConvolution" in operators(lambda: layer(x))


@pytest.mark.parametrize("has", [True, False])
def test_a_network_is_trained_in_bfloat16_where_the_cpu_has_instructions_for_it(has, monkeypatch):
    monkeypatch.setattr(convolution, "has_bfloat16_instructions", lambda: has)
    layer, x = layer_and_maps()
    train_in_bfloat16(nn.Sequential(layer))
    assert ("_Bfloat16Convolution" in operators(lambda: layer(x))) == has


def test_bfloat16_is_preferred_to_the_shorter_algorithm():
    layer, x = layer_and_maps()
    layer.in_bfloat16 = True
    names = operators(lambda: layer(x))
    assert "_Bfloat16Convolution" in names
    assert "_ShortConvolution" not in names


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (CpuConvolution(16, 16, 2, stride=3), 20),  # not all pixels have a part
        (CpuConvolution(3, 16, 5), 20),
        (CpuConvolution(16, 16, 5).eval(), 20),
        (CpuConvolution(16, 16, 5).requires_grad_(False), 20),
    ],
    ids=["a stride longer than the kernel", "few channels", "in evaluation mode", "frozen"],
)
def test_some_layers_are_not_trained_in_bfloat16(layer, size):
    layer.in_bfloat16 = True
    x = random(64, layer.in_channels, size, size, dtype=torch.float32).requires_grad_()
    assert "_Bfloat16Convolution" not in operators(lambda: layer(x))
    assert torch.autograd.grad(layer(x).sum(), x)[0].isfinite().all()


def test_a_few_images_are_not_worth_rounding_all_weights():
    layer, x = layer_and_maps()
    layer.in_bfloat16 = True
    few = x[: BFLOAT16_USES // 36 - 1]  # 6 x 6 outputs of each image
    assert uses_of_a_weight(few.shape, 9, 2) < BFLOAT16_USES <= uses_of_a_weight(x.shape, 9, 2)
    assert "_Bfloat16Convolution" not in operators(lambda: layer(few))


def test_a_scaled_layer_in_bfloat16_multiplies_all_but_its_bias():
    layer, x = layer_and_maps(scale=0.25)
    layer.in_bfloat16 = True
    expected = 0.25 * F.conv2d(x, layer.weight, stride=2) + layer.bias[:, None, None]
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0.01 * expected.abs().max().item())


def without_gradients(layer, x):
    with torch.no_grad():
        layer(x)


def under_autocast(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)


@pytest.mark.parametrize(
    "run",
    [without_gradients, under_autocast, lambda layer, x: layer.double()(x.double())],
    ids=["without gradients", "under autocast", "in float64"],
)
def test_everywhere_else_it_is_the_plain_convolution(run):
    layer, x = layer_and_maps()
    layer.in_bfloat16 = True
    assert "aten::convolution" in operators(lambda: run(layer, x))


def test_an_exported_layer_is_the_plain_convolution():
    layer, x = layer_and_maps()
    layer.in_bfloat16 = True
    program = torch.export.export(layer, (x,))
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.conv2d.default
    ]


@pytest.mark.parametrize("stride", [1, 2])
def test_unfolded_it_is_a_convolution_and_a_relu(stride):
    x, weight, bias = random(2, 2, 9, 8), random(5, 2, 3, 3, seed=1), random(5, seed=2)
    found = unfolded_conv2d_relu(x, weight, bias, stride)
    torch.testing.assert_close(found, F.relu(F.conv2d(x, weight, bias, stride)))
    assert found.permute(2, 3, 0, 1).is_contiguous(), "the next convolution need not copy it"


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_unfolded_its_gradients_are_the_derivatives(stride, layout):
    weight = random(4, 2, 3, 3, seed=1).to(memory_format=layout)
    inputs = random(2, 2, 6, 7), weight, random(4, seed=2)
    assert torch.autograd.gradcheck(
        lambda *given: unfolded_conv2d_relu(*given, stride), [tensor.requires_grad_() for tensor in inputs]
    )


@pytest.mark.parametrize("channels", [1, 3], ids=["unfolded", "direct"])
def test_rectified_maps_are_those_of_the_layer_above_zero(channels):
    torch.manual_seed(0)
    layer, x = CpuConvolution(channels, 81, 9), torch.randn(2, channels, 12, 12)
    assert ("_UnfoldedConvolution" in operators(lambda: layer.conv_relu(x))) == (channels == 1)
    torch.testing.assert_close(layer.conv_relu(x), torch.relu(layer(x)), rtol=0, atol=1e-5)
