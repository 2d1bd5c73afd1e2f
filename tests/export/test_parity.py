import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from export import parity
from export.to_onnx import Graphs, trace
from training.config import CapsNetConfig, MatrixCapsNetConfig
from training.models.build import build
from training.models.capsnet import CapsNet

TINY = CapsNetConfig(conv_channels=4, primary_types=2, classes=3, class_dim=4, decoder_hidden=(8,))


@pytest.fixture(scope="module")
def model():
    """An untrained network, its class capsules' weights so large that poses are as long as trained ones."""
    model = CapsNet(TINY).eval()
    with torch.no_grad():
        model.class_caps.weight *= 30
    return model


@pytest.fixture(scope="module")
def graphs(model):
    return trace(model)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TINY, (1, 2, 3, 5)),
        (replace(TINY, routing_iterations=4), (1, 2, 3, 4, 5)),
        (MatrixCapsNetConfig("matrix-capsnet", routing_iterations=2), (2,)),
    ],
)
def test_the_own_number_of_iterations_is_always_compared(config, expected):
    assert parity.iterations_compared(build(config)) == expected


def pixels(count=32):
    return np.random.default_rng(0).random((count, 28, 28, 1), dtype=np.float32)


def test_a_network_that_standardizes_passes_on_pale_pictures():
    """Their deviation is a hundredth of their mean, whose rounding differs from one library to the other."""
    torch.manual_seed(0)
    config = replace(TINY, image_size=32, image_channels=3, standardize_per_image=True)
    model = CapsNet(config).eval()
    with torch.no_grad():
        model.class_caps.weight *= 30
    noise = np.random.default_rng(0).standard_normal((32, 32, 32, 3), np.float32)
    assert parity.check_parity(model, trace(model), 0.8 + 0.01 * noise) < 5e-6


def test_the_gate_looks_at_batches_that_were_not_traced_and_at_several_iterations(model, graphs, monkeypatch):
    seen = []
    differences = parity._differences

    def watched(model, graphs, images):
        for output, size, error in differences(model, graphs, images):
            seen.append((model.config.routing_iterations, size, output))
            yield output, size, error

    monkeypatch.setattr(parity, "_differences", watched)
    assert parity.check_parity(model, graphs, pixels()) < 1e-5
    outputs = ("probabilities", "poses", "reconstruction")
    assert seen == [(r, n, o) for r in (1, 2, 3, 5) for n in (1, 3, 32) for o in outputs]


def test_a_weight_that_differs_by_a_thousandth_fails_the_gate(model, graphs, monkeypatch):
    monkeypatch.setattr(parity, "ROUTING_ITERATIONS", {"capsnet": ()})  # of others the graph would be traced
    encoder = onnx.ModelProto.FromString(graphs.encoder.SerializeToString())
    for tensor in encoder.graph.initializer:
        if tensor.name == "class_caps.weight":
            off = onnx.numpy_helper.to_array(tensor) * 1.001
            tensor.CopyFrom(onnx.numpy_helper.from_array(off, tensor.name))
    with pytest.raises(parity.ParityError, match="with 3 routing iterations; at most 1e-05 is allowed"):
        parity.check_parity(model, Graphs(encoder, graphs.decoder), pixels())


@pytest.mark.parametrize(
    ("iterations", "told"),
    [
        (1, "with 1 routing iteration (the network has 3); at most"),
        (2, "with 2 routing iterations (the network has 3); at most"),
    ],
)
def test_a_difference_at_other_iterations_than_the_networks_own_says_so(
    model, graphs, monkeypatch, iterations, told
):
    monkeypatch.setattr(parity, "ROUTING_ITERATIONS", {"capsnet": (iterations,)})
    monkeypatch.setattr(parity, "TOLERANCE", {"capsnet": -1.0})  # which no difference is below
    with pytest.raises(parity.ParityError, match=re.escape(told)):
        parity.check_parity(model, graphs, pixels())


def test_a_network_of_one_iteration_differs_with_1_routing_iteration(monkeypatch):
    monkeypatch.setattr(parity, "TOLERANCE", {"capsnet": -1.0})
    model = CapsNet(replace(TINY, routing_iterations=1)).eval()
    with pytest.raises(parity.ParityError, match="with 1 routing iteration; at most"):
        parity.check_parity(model, trace(model), pixels())


@pytest.mark.parametrize(
    ("role", "weight", "output"),
    [("encoder", "class_caps.weight", "probabilities"), ("decoder", "pixels.bias", "reconstruction")],
)
def test_a_single_weight_that_is_no_number_fails_the_gate(model, graphs, monkeypatch, role, weight, output):
    monkeypatch.setattr(parity, "ROUTING_ITERATIONS", {"capsnet": ()})  # of others the graph would be traced
    broken = onnx.ModelProto.FromString(getattr(graphs, role).SerializeToString())
    [tensor] = [tensor for tensor in broken.graph.initializer if tensor.name == weight]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[0] = np.nan
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    with pytest.raises(parity.ParityError, match=f"{output} differs by nan"):
        parity.check_parity(model, replace(graphs, **{role: broken}), pixels())


def test_too_few_images_are_an_error(model, graphs):
    with pytest.raises(ValueError, match="parity needs 32 images, got 5"):
        parity.check_parity(model, graphs, pixels(5))


def test_another_number_of_iterations_keeps_the_weights():
    model = CapsNet(TINY)
    other = parity.with_iterations(model, 5)
    assert other.class_caps.routing.iterations == 5
    assert (other.class_caps.weight == model.class_caps.weight).all()
