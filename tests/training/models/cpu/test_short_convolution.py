import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from training.models.cpu.convolution import LARGEST_TILE
from training.models.cpu.short_convolution import axis_algorithm, short_conv2d

# B images, C channels in, O channels out


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def spatial_first(x):
    """The same tensor, in memory as [H, W, B, C]."""
    return x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)


def results(convolution, x, weight):
    """Output, gradient of the input and gradient of the weights, for one random gradient of the output."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = convolution(x, weight)
    gradient = random(*y.shape, seed=9).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), gradient)]


@settings(max_examples=60, derandomize=True)
@given(st.data())
def test_output_and_gradients_are_those_of_a_direct_convolution_for_any_sizes(data):
    def pick(lowest, highest):
        return data.draw(st.integers(lowest, highest))

    kernel, stride, tile = (pick(1, 6), pick(1, 6)), pick(1, 3), pick(1, 4)
    images, channels, outputs = pick(1, 3), pick(1, 3), pick(1, 3)
    size = [taps + pick(0, 9) for taps in kernel]
    x, weight = random(images, channels, *size), random(outputs, channels, *kernel, seed=1)
    found = results(lambda x, weight: short_conv2d(x, weight, stride, tile), x, weight)
    expected = results(lambda x, weight: F.conv2d(x, weight, stride=stride), x, weight)
    for ours, direct in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, direct, rtol=0, atol=1e-9)


@pytest.mark.parametrize("outputs", [6, 4, 8, 10, 5])
def test_the_networks_shapes_agree_with_a_direct_convolution(outputs):
    """9 x 9, stride 2: MNIST, images of 24, 32 and 36 pixels, and a size that no tile divides."""
    x, weight = random(2, 3, *(2 * [2 * outputs + 8])), random(4, 3, 9, 9, seed=1)
    expected = results(lambda x, weight: F.conv2d(x, weight, stride=2), x, weight)
    for tile in range(1, LARGEST_TILE + 1):
        found = results(lambda x, weight, tile=tile: short_conv2d(x, weight, 2, tile), x, weight)
        for ours, direct in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, direct, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tile", [2, 3])
def test_the_hand_written_gradients_are_the_derivatives(tile):
    x, weight = random(2, 2, 9, 8).requires_grad_(), random(2, 2, 4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, weight: short_conv2d(x, weight, 2, tile), (x, weight))


def test_gradients_of_gradients_are_refused():
    """A hand-written backward pass has no derivative of its own; silence would be a wrong one."""
    x, weight = random(2, 2, 9, 8).requires_grad_(), random(2, 2, 4, 3, seed=1).requires_grad_()
    loss = short_conv2d(x, weight, 2, 2).square().sum()
    gradient, _ = torch.autograd.grad(loss, (x, weight), create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


def test_the_result_does_not_depend_on_the_order_in_memory():
    x, weight = random(2, 3, 12, 13), random(4, 3, 5, 5, seed=1)
    expected = results(lambda x, weight: short_conv2d(x, weight, 2, 2), x, weight)
    for other in (spatial_first(x), x.contiguous(memory_format=torch.channels_last)):
        found = results(lambda x, weight: short_conv2d(x, weight, 2, 2), other, weight)
        for ours, first in zip(found, expected, strict=True):
            assert torch.equal(ours, first)


def test_inputs_and_weights_are_left_as_they_are():
    """The backward pass works in the same memory over and over; not in this."""
    x, weight = spatial_first(random(2, 3, 12, 13)), random(4, 3, 5, 5, seed=1)
    before = x.clone(), weight.clone()
    results(lambda x, weight: short_conv2d(x, weight, 2, 2), x, weight)
    assert torch.equal(x, before[0])
    assert torch.equal(weight, before[1])


def test_tiles_of_3_take_676_multiplications_per_pair_of_channels_on_mnist():
    rows = axis_algorithm(kernel=9, stride=2, outputs=6, tile=3, dtype=torch.float32)
    assert (rows.tiles * rows.points) ** 2 == 676


BOUNDS = {2: (1.5e-6, 2e-6, 1.2e-6), 3: (2.5e-6, 3e-6, 1.5e-6), 4: (3.5e-6, 4e-6, 2e-6)}


@pytest.mark.parametrize("tile", range(2, LARGEST_TILE + 1))
def test_float32_loses_little(tile):
    """Relative to the root mean square of what is computed, against float64: outputs, and both gradients.

    A direct convolution of this size is right to 5e-7, 3e-7 and 2e-7, more or less by the order in which a
    processor's kernels add up.
    """
    x, weight = random(4, 64, 20, 20).relu(), 0.02 * random(64, 64, 9, 9, seed=1)
    exact = results(lambda x, weight: F.conv2d(x, weight, stride=2), x, weight)
    short = results(lambda x, weight: short_conv2d(x, weight, 2, tile), x.float(), weight.float())
    for ours, right, bound in zip(short, exact, BOUNDS[tile], strict=True):
        assert (ours - right).norm() < bound * right.norm()
