import pytest
import torch

from training.config import CapsNetConfig
from training.models.capsnet import CapsNet

CONFIG = CapsNetConfig(
    conv_channels=64,
    primary_types=4,
    capsule_bias=True,
    learned_priors=True,
    decoder_hidden=(64, 128),
    official_initialization=True,
)
CUT_STD = 0.8796  # of a normal distribution of deviation 1 that is drawn again beyond 2


def official(seed: int = 0) -> CapsNet:
    torch.manual_seed(seed)
    return CapsNet(CONFIG)


def ending(model: CapsNet, kind: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.named_parameters() if name.endswith(f".{kind}")}


def test_every_bias_is_a_tenth():
    biases = ending(official(), "bias")
    assert len(biases) == 6  # Conv1, PrimaryCapsules, class capsules, three of the decoder
    assert all((bias == 0.1).all() for bias in biases.values())


def test_weights_are_normal_and_cut_at_two_standard_deviations():
    for name, weight in ending(official(), "weight").items():
        std = 0.05 if name == "conv1.weight" else 0.1
        assert weight.abs().max() <= 2 * std
        assert weight.abs().max() > 1.9 * std
        assert weight.std().item() == pytest.approx(CUT_STD * std, rel=0.05), name
        assert abs(weight.mean()) < 0.05 * std


def test_cut_values_are_drawn_again_and_not_moved_to_the_edge():
    weight = official().class_caps.weight
    assert (weight.abs() > 0.199).float().mean() < 0.005


def test_learned_priors_begin_at_zero():
    assert (official().class_caps.routing.priors == 0).all()


def test_the_same_seed_gives_the_same_weights():
    first, again, other = official(), official(), official(seed=1)
    for one, two in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(ending(first, "weight").values(), ending(other, "weight").values(), strict=True):
        assert not torch.equal(one, two)


def test_nothing_but_the_weights_differs_from_a_network_of_pytorchs_own():
    torch.manual_seed(0)
    plain = CapsNet(CapsNetConfig(**{**CONFIG.__dict__, "official_initialization": False}))
    shapes = [
        {name: value.shape for name, value in model.state_dict().items()} for model in (plain, official())
    ]
    assert shapes[0] == shapes[1]
    assert not torch.equal(plain.conv1.weight, official().conv1.weight)
