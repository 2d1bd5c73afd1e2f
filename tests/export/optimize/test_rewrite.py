import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from export.optimize.cost import toom_cook_1d_tiles, toom_cook_2d_tiles
from export.optimize.derive import write_variants
from export.optimize.encoder import Encoder, NotOptimizableError, read_encoder
from export.optimize.rewrite import rewritten, variants_of
from export.to_onnx import trace_decoder, trace_encoder
from tests.support.random_encoders import architecture_of
from training.config import CapsNetConfig
from training.models.capsnet import CapsNet


def encoder(**options) -> Encoder:
    torch.manual_seed(0)
    config = CapsNetConfig(decoder_hidden=(), **options)
    return read_encoder(trace_encoder(CapsNet(config).eval()), architecture_of(config))


@pytest.fixture(scope="module")
def mnist() -> Encoder:
    """The paper's encoder."""
    return encoder()


def weights_of(model: onnx.ModelProto) -> set[tuple[int, ...]]:
    return {tuple(tensor.dims) for tensor in model.graph.initializer}


def test_the_papers_convolution_is_one_tile(mnist):
    assert toom_cook_2d_tiles(mnist)[0] == (6, 6)
    assert toom_cook_1d_tiles(mnist.primary)[0] == 6


def test_a_convolution_of_one_channel_stays_as_it_is(mnist):
    assert toom_cook_1d_tiles(mnist.conv1) == []


def test_a_narrow_network_stays_as_it_is():
    narrow = encoder(conv_channels=8, primary_types=2, classes=3, class_dim=4)
    assert toom_cook_2d_tiles(narrow) == []
    assert variants_of(narrow) == {}


def test_of_the_second_rank_are_other_tiles_and_of_a_rank_too_high_no_variants(mnist):
    first, second = variants_of(mnist), variants_of(mnist, 1)
    assert first.keys() == second.keys() == {"toom_cook_1d", "toom_cook_2d"}
    for variant in first:
        assert weights_of(first[variant]) != weights_of(second[variant])
    assert variants_of(mnist, 99) == {}


def test_a_graph_without_convolutions_stays_as_it_is(tmp_path):
    config = CapsNetConfig(conv_channels=4, primary_types=2, decoder_hidden=(8,))
    other, architecture = trace_decoder(CapsNet(config)), architecture_of(config)
    with pytest.raises(NotOptimizableError, match=r"the graph has no weight conv1\.weight"):
        rewritten(other, architecture)
    assert write_variants(other, architecture, tmp_path, threads=1).keys() == {"plain"}


def test_a_network_that_is_no_capsnet_stays_as_it_is(mnist):
    assert rewritten(mnist.model, None) == {}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"image_size": 36},
        {"image_size": 24, "image_channels": 3, "none_of_the_above": True},
        {"image_size": 32, "image_channels": 2, "classes": 5},
        {"image_size": 30},
    ],
    ids=["mnist", "multimnist", "cifar10", "smallnorb", "a size that tiles do not divide"],
)
def test_both_variants_of_two_ranks_compute_what_the_plain_graph_does(config):
    """At half the papers' widths, which is where transforms begin to pay."""
    parts = encoder(conv_channels=128, primary_types=16, **config)
    session = ort.InferenceSession(parts.model.SerializeToString())
    shape = session.get_inputs()[0].shape[1:]
    pixels = np.random.default_rng(0).random((3, *shape)).astype(np.float32)
    expected = session.run(None, {"pixels": pixels})
    for rank in (0, 1):
        variants = variants_of(parts, rank)
        assert variants.keys() == {"toom_cook_1d", "toom_cook_2d"}
        for variant, model in variants.items():
            found = ort.InferenceSession(model.SerializeToString()).run(None, {"pixels": pixels})
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-5, err_msg=f"{variant} of rank {rank}")
