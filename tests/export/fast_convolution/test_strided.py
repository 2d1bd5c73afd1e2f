"""Strided convolutions along one axis: the matrices compute a direct correlation, in few products."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.fast_convolution.strided import strided_convolution
from export.fast_convolution.toom_cook import LARGEST

# Outputs, taps and stride; strides above the kernel's size leave inputs out.
sizes = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 11)).filter(
    lambda size: size[0] + -(-size[1] // size[2]) - 1 <= LARGEST
)
seeds = st.integers(0, 2**32 - 1)
ROUNDING = 1e-10  # of float64, and what the transforms of up to 10 inputs multiply it with


def correlation(x, g, stride):
    """Directly: y[i] = sum over t of g[t] x[stride i + t]."""
    return np.lib.stride_tricks.sliding_window_view(x, len(g))[::stride] @ g


@given(sizes, seeds)
@settings(max_examples=150)
def test_the_matrices_compute_a_strided_convolution(size, seed):
    outputs, kernel, stride = size
    random = np.random.default_rng(seed)
    x, g = random.standard_normal((outputs - 1) * stride + kernel), random.standard_normal(kernel)
    algorithm = strided_convolution(outputs, kernel, stride)
    found = algorithm.result @ ((algorithm.filter @ g) * (algorithm.inputs @ x[algorithm.positions]))
    np.testing.assert_allclose(found, correlation(x, g, stride), rtol=0, atol=ROUNDING)


@given(sizes)
@settings(max_examples=50)
def test_a_tile_needs_each_input_once_and_one_product_for_each(size):
    outputs, kernel, stride = size
    algorithm = strided_convolution(outputs, kernel, stride)
    needed = {stride * i + t for i in range(outputs) for t in range(kernel)}
    assert sorted(algorithm.positions) == sorted(needed)
    assert algorithm.size == len(needed)
    assert algorithm.outputs == outputs
    assert algorithm.filter.shape == (len(needed), kernel)
    assert algorithm.inputs.shape == (len(needed), len(needed))
    assert algorithm.result.shape == (outputs, len(needed))


@given(sizes, seeds)
@settings(max_examples=50)
def test_a_constant_among_the_products_comes_to_every_output(size, seed):
    outputs, kernel, stride = size
    algorithm = strided_convolution(outputs, kernel, stride)
    products = np.random.default_rng(seed).standard_normal(algorithm.size)
    shifted = algorithm.result @ (products + 0.7 * algorithm.constant)
    np.testing.assert_allclose(shifted, algorithm.result @ products + 0.7, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("outputs", range(2, 7))
def test_a_bias_is_not_rounded_on_its_way_through_the_products(outputs):
    """Of the paper's kernel: it is added to one product that every output takes as it is."""
    algorithm = strided_convolution(outputs, 9, 2)
    assert np.count_nonzero(algorithm.constant) == 1
    np.testing.assert_array_equal(algorithm.result @ algorithm.constant, 1)


@given(sizes, st.integers(1, 4), seeds)
@settings(max_examples=50)
def test_neighboring_tiles_make_one_longer_output(size, tiles, seed):
    outputs, kernel, stride = size
    random = np.random.default_rng(seed)
    x, g = random.standard_normal((tiles * outputs - 1) * stride + kernel), random.standard_normal(kernel)
    algorithm = strided_convolution(outputs, kernel, stride)
    windows = algorithm.windows(tiles)
    assert windows.shape == (algorithm.size, tiles)
    products = (algorithm.filter @ g)[:, None] * (algorithm.inputs @ x[windows])
    found = (algorithm.result @ products).T.reshape(-1)
    np.testing.assert_allclose(found, correlation(x, g, stride), rtol=0, atol=ROUNDING)


def test_the_papers_six_outputs_take_19_products_instead_of_54():
    """Five and four taps: 10 and 9 products."""
    algorithm = strided_convolution(6, 9, 2)
    assert algorithm.size == 19
    assert np.count_nonzero(algorithm.inputs[:10, 10:]) == np.count_nonzero(algorithm.inputs[10:, :10]) == 0


@pytest.mark.parametrize(("kernel", "stride"), [(3, 0), (0, 1), (3, -2)])
def test_a_kernel_or_stride_below_1_is_refused(kernel, stride):
    with pytest.raises(ValueError, match=f"kernel and stride must be at least 1, got {kernel} and {stride}"):
        strided_convolution(2, kernel, stride)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [(7, "7 outputs of 5 taps take 11 inputs; 1 to 10 are possible"), (0, "0 outputs of 5 taps")],
)
def test_a_tile_for_which_there_is_no_algorithm_is_refused(outputs, message):
    with pytest.raises(ValueError, match=message):
        strided_convolution(outputs, 9, 2)
