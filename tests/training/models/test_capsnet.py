from dataclasses import replace

import pytest
import torch

from training.config import CapsNetConfig, StemConvolution
from training.models.build import build
from training.models.capsnet import CapsNet, lengths
from training.models.standardize import standardize_per_image

TINY = CapsNetConfig(conv_channels=4, primary_types=2, classes=3, class_dim=4, decoder_hidden=(8,))


def parameters(config):
    return sum(parameter.numel() for parameter in CapsNet(config).parameters())


def test_capsnet_has_the_papers_parameter_count():
    assert parameters(CapsNetConfig()) == 8_215_568  # 8.2M


def test_capsnet_without_its_decoder_has_the_papers_parameter_count():
    assert parameters(CapsNetConfig(decoder_hidden=())) == 6_804_224  # 6.8M


def test_the_multimnist_network_has_the_papers_parameter_count():
    assert parameters(CapsNetConfig(image_size=36)) == 11_361_808  # 11.36M


def test_capsule_biases_add_one_element_per_class_and_dimension():
    assert parameters(CapsNetConfig(capsule_bias=True)) == 8_215_568 + 160


def test_there_are_1152_primary_capsules_of_8_dimensions():
    model = CapsNet(CapsNetConfig())
    features = torch.relu(model.conv1(torch.rand(1, 1, 28, 28)))
    assert features.shape == (1, 256, 20, 20)
    assert model.primary_caps(features).shape == (1, 1152, 8)


def test_a_stem_comes_before_conv1_and_its_stride_leaves_fewer_capsules():
    config = CapsNetConfig(
        image_size=36, stem=(StemConvolution(96, 5, 2),), conv_channels=192, kernel=5, primary_types=32
    )
    model, pixels = CapsNet(config), torch.rand(2, 1, 36, 36)
    first = torch.relu(torch.nn.functional.conv2d(pixels, *model.stem[0].parameters(), stride=2))
    assert first.shape == (2, 96, 16, 16)
    second = torch.relu(torch.nn.functional.conv2d(first, *model.conv1.parameters()))
    assert second.shape == (2, 192, 12, 12)
    u = model.primary_caps(second)
    assert u.shape == (2, 4 * 4 * 32, 8)
    torch.testing.assert_close(model(pixels), model.class_caps(u), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "least"),
    [({}, 17), ({"kernel": 5}, 9), ({"kernel": 5, "stem": (StemConvolution(2, 5, 2),)}, 21)],
)
def test_the_smallest_image_has_one_primary_capsule_of_each_type(change, least):
    assert CapsNet(CapsNetConfig(image_size=least, conv_channels=2, **change)).config.primary_size == 1
    with pytest.raises(ValueError, match=f"image_size must be at least {least} pixels, got {least - 1}"):
        CapsNetConfig(image_size=least - 1, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": 24, "image_channels": 3},
        {"primary_dim": 6, "primary_types": 3},
        {"routing_iterations": 1},
        {"learned_priors": True},
        {"none_of_the_above": True},
        {"capsule_bias": True},
        {"primary_coupling": True},
        {"official_initialization": True, "capsule_bias": True, "learned_priors": True},
        {"standardize_per_image": True},
        {"decoder_hidden": ()},
        {"kernel": 5},
        {"stem": (StemConvolution(6, 5, 2), StemConvolution(5, 2)), "kernel": 4, "image_channels": 3},
    ],
)
def test_every_option_trains(change):
    config = replace(TINY, **change)
    model = CapsNet(config)
    pixels = torch.rand(2, config.image_channels, config.image_size, config.image_size)
    v = model(pixels)
    assert v.shape == (2, 3, 4)
    loss = v.sum()
    if model.decoder is not None:
        reconstruction = model.decoder(v, torch.eye(3)[:2])
        assert reconstruction.shape == pixels.shape
        loss = loss + reconstruction.sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("size", [(28, 32), (26, 26), (64, 64)])
def test_images_of_another_size_are_refused(size):
    """As built for training on a CPU, its kernels would read what is not theirs."""
    with pytest.raises(ValueError, match=r"an image makes \d+ of \d+: it has another size"):
        build(TINY)(torch.rand(2, 1, *size))


def test_lengths_are_probabilities():
    found = lengths(CapsNet(TINY)(torch.rand(4, 1, 28, 28)))
    assert ((found >= 0) & (found < 1)).all()


def test_the_decoder_sees_only_the_capsule_that_the_mask_keeps():
    model = CapsNet(TINY)
    poses, mask = torch.randn(1, 3, 4), torch.tensor([[0.0, 1.0, 0.0]])
    others = poses.clone()
    others[:, [0, 2]] = 99.0
    torch.testing.assert_close(model.decoder(poses, mask), model.decoder(others, mask), rtol=0, atol=0)
    assert not torch.equal(model.decoder(poses, mask), model.decoder(poses, mask.roll(1)))


def test_reconstructed_pixels_lie_between_0_and_1():
    model = CapsNet(TINY)
    pixels = model.decoder(100 * torch.randn(4, 3, 4), torch.ones(4, 3))
    assert ((pixels >= 0) & (pixels <= 1)).all()


def test_standardized_images_have_zero_mean_and_unit_variance():
    found = standardize_per_image(0.2 + 0.1 * torch.rand(3, 2, 8, 8))
    torch.testing.assert_close(found.mean(dim=(1, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(dim=(1, 2, 3), unbiased=False), torch.ones(3))


def test_standardizing_a_flat_image_gives_zeros():
    torch.testing.assert_close(standardize_per_image(torch.full((1, 1, 4, 4), 0.5)), torch.zeros(1, 1, 4, 4))
