from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.fast_convolution.toom_cook import LARGEST, short_convolution

sizes = st.tuples(st.integers(1, 6), st.integers(1, 6)).filter(lambda s: sum(s) - 1 <= LARGEST)


@given(sizes, st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_the_three_matrices_convolve(size, seed):
    outputs, taps = size
    random = np.random.default_rng(seed)
    x, g = random.standard_normal(outputs + taps - 1), random.standard_normal(taps)
    algorithm = short_convolution(outputs, taps)
    found = algorithm.result @ ((algorithm.filter @ g) * (algorithm.inputs @ x))
    np.testing.assert_allclose(found, np.correlate(x, g, "valid"), rtol=0, atol=1e-11)


@given(sizes)
@settings(max_examples=60)
def test_it_takes_one_product_per_input(size):
    outputs, taps = size
    algorithm = short_convolution(outputs, taps)
    assert algorithm.size == outputs + taps - 1
    assert algorithm.filter.shape == (algorithm.size, taps)
    assert algorithm.inputs.shape == (algorithm.size, algorithm.size)
    assert algorithm.result.shape == (outputs, algorithm.size)


def test_two_outputs_of_three_taps_are_winograds():
    """F(2, 3): four products instead of six, and the transform of the outputs has only 0, 1 and -1."""
    algorithm = short_convolution(2, 3)
    np.testing.assert_array_equal(algorithm.result, [[1, 1, 1, 0], [0, 1, -1, 1]])


@pytest.mark.parametrize(("outputs", "taps"), [(3, 4), (6, 5)])
def test_coefficients_are_correctly_rounded_fractions(outputs, taps):
    """The result's are powers of the points: exact in float64 or its nearest number."""
    algorithm = short_convolution(outputs, taps)
    for column in algorithm.result.T[:-1]:
        point = Fraction(float(column[1])).limit_denominator(100)
        np.testing.assert_array_equal(column, [float(point**power) for power in range(outputs)])


@pytest.mark.parametrize("outputs", range(2, 7))
def test_float32_loses_little_in_two_dimensions(outputs):
    """Root mean square, for the 5 x 5 phase of a 9 x 9 kernel of stride 2.."""
    algorithm = short_convolution(outputs, 5)
    random = np.random.default_rng(0)
    x = random.standard_normal((algorithm.size, algorithm.size, 256, 20)).astype(np.float32)
    g = random.standard_normal((5, 5, 256))
    spectrum = np.einsum("ik,jl,klc->ijc", algorithm.filter, algorithm.filter, g).astype(np.float32)
    inputs, result = algorithm.inputs.astype(np.float32), algorithm.result.astype(np.float32)
    transformed = np.einsum("ik,jl,klcn->ijcn", inputs, inputs, x, optimize=True)
    products = np.einsum("ijc,ijcn->ijn", spectrum, transformed)
    found = np.einsum("mi,pj,ijn->mpn", result, result, products, optimize=True)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (5, 5), (0, 1))
    exact = np.einsum("mpcnkl,klc->mpn", windows, g, optimize=True)
    assert np.sqrt(np.square(found - exact).mean()) <= 5e-5 * exact.std()


def test_too_large_an_algorithm_is_refused():
    with pytest.raises(ValueError, match=r"7 outputs of 5 taps take 11 inputs; 1 to 10 are possible"):
        short_convolution(7, 5)
