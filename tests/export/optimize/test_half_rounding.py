"""A CPU rounds to float16 by arithmetic: to the same numbers as by a cast."""

import numpy as np
import onnx
import pytest
from onnx import helper

from export.optimize.half_precision import half_precision
from export.optimize.half_rounding import LARGEST, rounded_by_arithmetic
from tests.support.tiny_bundle import make_model, run_model

SMALLEST_OF_11_BITS = float(np.finfo(np.float16).smallest_normal)


def one_product() -> onnx.ModelProto:
    """x [N, 1] times the matrix 1, in half precision."""
    nodes = [helper.make_node("MatMul", ["x", "one"], ["y"])]
    return half_precision(
        make_model(nodes, {"one": np.ones((1, 1), np.float32)}, {"x": (None, 1)}, {"y": (None, 1)})
    )


def test_numbers_are_rounded_as_by_a_cast():
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 1], 10_000)
    spread = signs * 10 ** rng.uniform(np.log10(SMALLEST_OF_11_BITS), np.log10(65504), 10_000)
    between = [0, 1 + 2**-11, 1 + 3 * 2**-11, 65504 - 16, 65504]  # halfway between two, and the largest
    x = np.concatenate([spread, between]).astype(np.float32)[:, None]
    found, largest = run_model(rounded_by_arithmetic(one_product()), x=x)
    np.testing.assert_array_equal(found, x.astype(np.float16).astype(np.float32))
    assert largest == 65504


@pytest.mark.parametrize("value", [65520, -65536, 1e30, np.inf])
def test_a_number_beyond_float16_is_the_largest_though_others_follow(value):
    x = np.array([[1], [value], [2]], np.float32)
    _, largest = run_model(rounded_by_arithmetic(one_product()), x=x)
    assert largest > 65504


def test_the_graph_in_half_precision_is_not_changed():
    half = one_product()
    before = half.SerializeToString()
    assert [output.name for output in rounded_by_arithmetic(half).graph.output] == ["y", LARGEST]
    assert half.SerializeToString() == before
