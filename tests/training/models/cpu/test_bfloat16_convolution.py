import pytest
import torch
from torch.nn import functional as F

from training.models.cpu import bfloat16_convolution
from training.models.cpu.bfloat16_convolution import bfloat16_conv2d, has_bfloat16_instructions


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def results(convolve, x, weight):
    """Its outputs and its gradients by maps and weights."""
    given = [tensor.detach().requires_grad_() for tensor in (x, weight)]
    y = convolve(*given)
    gradient = random(*y.shape, seed=2).to(y.dtype)
    return y.detach(), *torch.autograd.grad(y, given, gradient)


# Strides divide neither kernels nor maps; rows and columns that no kernel sees have no gradient.
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "size"),
    [(16, 24, 9, 2, (20, 21)), (32, 16, 5, 1, (12, 9)), (3, 16, 5, 3, (16, 13)), (1, 8, 2, 2, (6, 7))],
)
@pytest.mark.parametrize("all_side_by_side", [True, False])
def test_it_is_a_convolution_rounded_to_bfloat16(
    channels, outputs, kernel, stride, size, all_side_by_side, monkeypatch
):
    monkeypatch.setattr(bfloat16_convolution, "NARROW", 100 if all_side_by_side else 0)
    x, weight = random(6, channels, *size), random(outputs, channels, kernel, kernel, seed=1)
    found = results(lambda x, weight: bfloat16_conv2d(x, weight, stride), x.float(), weight.float())
    expected = results(lambda x, weight: F.conv2d(x, weight, stride=stride), x, weight)
    for ours, exact in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert ours.shape == exact.shape
        assert (ours - exact).norm() < 0.01 * exact.norm()  # without the instructions, oneDNN rounds more


def test_gradients_of_weights_are_summed_in_float32():
    x, weight = torch.ones(4, 16, 34, 34), torch.ones(16, 16, 3, 3).requires_grad_()
    bfloat16_conv2d(x, weight, 1).sum().backward()
    assert (weight.grad == 4 * 32 * 32).all()


def test_products_are_summed_in_float32():
    """In bfloat16, a sum of ones ends at 256."""
    found = bfloat16_conv2d(torch.ones(1, 512, 3, 3), torch.ones(16, 512, 3, 3), 1)
    assert (found == 512 * 9).all()


def test_images_get_no_gradient_where_none_is_wanted():
    x, weight = random(2, 16, 9, 9).float(), random(16, 16, 5, 5, seed=1).float().requires_grad_()
    y = bfloat16_conv2d(x, weight, 1)
    by_x, by_weight, _ = y.grad_fn.apply(torch.ones_like(y))
    assert by_x is None
    assert by_weight is not None


def test_the_next_layer_need_not_copy_the_result():
    y = bfloat16_conv2d(random(2, 16, 9, 9).float(), random(16, 16, 5, 5).float(), 2)
    assert y.permute(2, 3, 0, 1).is_contiguous()


@pytest.fixture
def not_asked_before():
    has_bfloat16_instructions.cache_clear()
    yield
    has_bfloat16_instructions.cache_clear()


def test_it_asks_the_processor(monkeypatch, not_asked_before):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False})
    assert not has_bfloat16_instructions()
    has_bfloat16_instructions.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert has_bfloat16_instructions()
