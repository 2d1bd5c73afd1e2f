import pytest
import torch
from torch import nn

from training.models.capsules import ClassCapsules
from training.models.cpu.class_capsules import CpuClassCapsules, CpuRouting
from training.models.cpu.factored_votes import FactoredVotes
from training.models.forms import use_training_forms

# B 2, I 5, J 3, E 4, D 6


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cpu_class_capsules(*arguments, **options):
    """As a built network has them."""
    layer = nn.Sequential(ClassCapsules(*arguments, **options))
    use_training_forms(layer)
    assert isinstance(layer[0], CpuClassCapsules)
    assert isinstance(layer[0].routing, CpuRouting)
    return layer[0]


def factors(lower=5, upper_dim=6):
    return random(2, lower, 4), random(lower, 4, 3 * upper_dim, seed=1)


def votes(u, weight):
    """What the factors stand for, [B, J, I, D]."""
    return torch.einsum("bie,iejd->bjid", u, weight.unflatten(2, (3, -1)))


def weighted_sum(u, weight, c):
    """Of votes that are written down."""
    return torch.einsum("bji,bjid->bjd", c.expand(len(u), -1, -1), votes(u, weight))


def agreement(u, weight, v):
    """Of votes that are written down."""
    return torch.einsum("bjid,bjd->bji", votes(u, weight), v)


def assert_learns_the_same(ours, expected, inputs):
    """Results and gradients of float32, which `ours` computes, beside those of float64."""

    def results(compute, dtype):
        given = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        result = compute(*given)
        gradient = random(*result.shape, seed=3).to(dtype)
        return result.detach(), *torch.autograd.grad(result, given, gradient)

    for single, double in zip(results(ours, torch.float32), results(expected, torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5 * double.abs().max().item())


# Blocks of 16 lower capsules: less than one, one, two and a half.
SIZES = pytest.mark.parametrize(("lower", "upper_dim"), [(5, 6), (16, 16), (40, 16)])


@SIZES
@pytest.mark.parametrize("own", [True, False], ids=["each example's own", "one for all"])
def test_a_weighted_sum_is_that_of_the_votes(lower, upper_dim, own):
    c = random(*([2] if own else []), 3, lower, seed=2)
    assert_learns_the_same(
        lambda u, w, c: FactoredVotes.of(u, w, 3).weighted_sum(c),
        weighted_sum,
        (*factors(lower, upper_dim), c),
    )


@SIZES
def test_agreement_is_that_of_the_votes(lower, upper_dim):
    v = random(2, 3, upper_dim, seed=2)
    assert_learns_the_same(
        lambda u, w, v: FactoredVotes.of(u, w, 3).agreement(v), agreement, (*factors(lower, upper_dim), v)
    )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_images_and_capsules(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs = random(35, 40, 4), random(40, 4, 3 * 16, seed=1), random(35, 3, 16, seed=2)
        assert_learns_the_same(lambda u, w, v: FactoredVotes.of(u, w, 3).agreement(v), agreement, inputs)
    finally:
        torch.set_num_threads(before)


def test_routing_of_factors_is_routing_of_their_votes():
    u, weight = factors()
    routing = CpuRouting(3, True, random(3, 5, seed=2), random(3, 6, seed=3))
    expected = routing(votes(u, weight))
    found = routing.float()(FactoredVotes.of(u.float(), weight.float(), 3))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"learned_priors": True},
        {"none_of_the_above": True},
        {"bias": True},
        {"learned_priors": True, "none_of_the_above": True, "bias": True},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
@pytest.mark.parametrize("iterations", [1, 3])
def test_class_capsules_learn_the_same_with_and_without_votes(options, iterations):
    """In float64 they write their votes down, trained in float32 on a CPU they do not."""
    torch.manual_seed(0)
    layer = cpu_class_capsules(12, 4, 3, 6, iterations, **options)
    with torch.no_grad():
        for parameter in layer.routing.parameters():  # they start at 0, where every mistake looks alike
            parameter.normal_()

    def gradients(dtype):
        layer.to(dtype).zero_grad()
        u = random(2, 12, 4).to(dtype).requires_grad_()
        v = layer(u)
        v.backward(random(2, 3, 6, seed=1).to(dtype))
        return [v.detach(), u.grad, *(parameter.grad.clone() for parameter in layer.parameters())]

    for single, double in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


def test_poses_of_more_than_16_elements_are_routed_as_votes_that_are_written_down():
    torch.manual_seed(0)
    layer, u = cpu_class_capsules(12, 4, 3, 20, 2), torch.randn(2, 12, 4)
    found = layer(u)
    torch.testing.assert_close(found, layer.routing(layer.votes(u)))


def test_votes_are_never_written_down_in_training():
    """Nothing that lives for the backward pass is as large as they are."""
    layer = cpu_class_capsules(lower=50, lower_dim=4, upper=10, upper_dim=16, iterations=3)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        layer(torch.randn(32, 50, 4)).sum().backward()
    assert saved
    assert max(saved) < 32 * 50 * 10 * 16 / 2
