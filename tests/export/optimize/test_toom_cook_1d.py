"""Convolutions with transformed rows, as ONNX Runtime computes them, against direct ones in float64."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from export.fast_convolution.toom_cook import LARGEST
from export.optimize.nodes import Nodes
from export.optimize.toom_cook_1d import Convolution, add_toom_cook_1d

# Errors are counted in roundings of float32 relative to the absolute values of all terms of an output. In
# between, Toom and Cook's matrices make numbers larger than their results, five times as large in the median:
# these count as they are. Over 4,800 random cases the median of the largest error was 0.9 roundings and its
# maximum 3.1; the bound is more than twice that, and a wrong coefficient is beyond it by far.
MAX_ROUNDINGS = 8
ROUNDING = 2.0**-24


@st.composite
def cases(draw):
    """A convolution and a tile; tiles that are higher than the output and overhanging ones are among them."""
    kernel = draw(st.tuples(st.integers(1, 9), st.integers(1, 5)))
    strides = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    size = tuple(draw(st.integers(k, k + 12)) for k in kernel)
    tile = draw(st.integers(1, min(6, LARGEST + 1 - -(-kernel[0] // strides[0]))))
    channels, features = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weight = random.standard_normal((features, channels, *kernel)).astype(np.float32)
    bias = random.standard_normal(features).astype(np.float32)
    batch = draw(st.integers(1, 3))
    x = random.standard_normal((batch, channels, *size)).astype(np.float32)
    return Convolution(weight, bias, strides, size), tile, x


def model_of(convolution, tile):
    nodes = Nodes()
    add_toom_cook_1d(nodes, "x", "y", convolution, tile)
    return finish(nodes, convolution)


def finish(nodes, convolution):
    features, channels = convolution.weight.shape[:2]
    graph = helper.make_graph(
        nodes.nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", channels, *convolution.size])],
        [
            helper.make_tensor_value_info(
                "y", TensorProto.FLOAT, ["batch", features, *convolution.output_size]
            )
        ],
        nodes.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model, x):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def direct(convolution, x):
    """[N, F, P, Q], in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(
        x.astype(np.float64), convolution.weight.shape[2:], (2, 3)
    )
    windows = windows[:, :, :: convolution.strides[0], :: convolution.strides[1]]
    y = np.einsum("ncpqkl,fckl->nfpq", windows, convolution.weight.astype(np.float64), optimize=True)
    return y + convolution.bias.astype(np.float64)[:, None, None]


def absolute_terms(model, x):
    """The sum of the absolute values of all that each output is a sum of: the same graph without signs."""
    absolute = onnx.ModelProto()
    absolute.CopyFrom(model)
    for tensor in absolute.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(np.abs(values), tensor.name))
    return run(absolute, np.abs(x))


@given(cases())
@settings(max_examples=150)
def test_the_nodes_compute_the_convolution(case):
    convolution, tile, x = case
    expected = direct(convolution, x)
    model = model_of(convolution, tile)
    found = run(model, x)
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= MAX_ROUNDINGS * ROUNDING * absolute_terms(model, x)).all()


def paper_like(channels=64, features=8):
    """PrimaryCapsules' shapes, with fewer channels."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((features, channels, 9, 9)).astype(np.float32)
    bias = random.standard_normal(features).astype(np.float32)
    x = np.maximum(random.standard_normal((4, channels, 20, 20)), 0).astype(np.float32)
    return Convolution(weight, bias, (2, 2), (20, 20)), x


@pytest.mark.parametrize(("tile", "bound"), [(2, 1.5e-6), (3, 2e-6), (4, 2.5e-6), (5, 4e-6), (6, 6e-6)])
def test_float32_loses_little(tile, bound):
    """For the paper's kernel, in root mean squares of the outputs: the more the higher the tile.

    A direct convolution loses 5e-7 to 9e-7, by the order in which a processor's kernels add up.
    """
    convolution, x = paper_like()
    expected = direct(convolution, x)
    error = run(model_of(convolution, tile), x) - expected
    assert np.sqrt(np.square(error).mean()) < bound * np.sqrt(np.square(expected).mean())


def test_a_tile_that_overhangs_gives_only_the_rows_that_there_are():
    convolution, x = paper_like(channels=2)
    assert run(model_of(convolution, 4), x).shape == (4, 8, 6, 6)


def test_an_image_is_not_changed_by_those_beside_it():
    convolution, x = paper_like(channels=2)
    model = model_of(convolution, 6)
    other = x.copy()
    other[1:] *= 100
    np.testing.assert_array_equal(run(model, other)[0], run(model, x)[0])


def test_one_row_of_weights_for_each_product():
    """For 6 of 6 rows 19 products of 1 x 9 filters, as the module's introduction says."""
    convolution, _ = paper_like(channels=2)
    weights = {tensor.name: tensor for tensor in model_of(convolution, 6).graph.initializer}
    assert list(weights["y/weight"].dims) == [19 * 8, 2, 1, 9]


def test_values_are_named_after_the_output_and_are_unique():
    convolution, _ = paper_like(channels=2)
    graph = model_of(convolution, 4).graph
    names = [name for node in graph.node for name in node.output] + [t.name for t in graph.initializer]
    assert len(names) == len(set(names))
    assert all(name == "y" or name.startswith("y/") for name in names)


@pytest.mark.parametrize(
    ("size", "kernel", "strides", "expected"),
    [
        ((20, 20), (9, 9), (2, 2), (6, 6)),
        ((7, 5), (3, 2), (1, 3), (5, 2)),
    ],
)
def test_the_output_has_the_size_that_onnx_says(size, kernel, strides, expected):
    weight = np.ones((1, 1, *kernel), np.float32)
    assert Convolution(weight, np.zeros(1, np.float32), strides, size).output_size == expected
