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


def factors():
    return random(2, 5, 4), random(5, 4, 3 * 6, seed=1)


def votes(u, weight):
    """What the factors stand for, [B, J, I, D]."""
    return torch.einsum("bie,iejd->bjid", u, weight.unflatten(2, (3, 6)))


@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 5)], ids=["each example's own", "one for all"])
def test_a_weighted_sum_is_that_of_the_votes(shape):
    u, weight = factors()
    c = random(*shape, seed=2)
    expected = torch.einsum("bji,bjid->bjd", c.expand(2, 3, 5), votes(u, weight))
    torch.testing.assert_close(FactoredVotes.of(u, weight, 3).weighted_sum(c), expected)


def test_agreement_is_that_of_the_votes():
    u, weight = factors()
    v = random(2, 3, 6, seed=2)
    expected = torch.einsum("bjid,bjd->bji", votes(u, weight), v)
    torch.testing.assert_close(FactoredVotes.of(u, weight, 3).agreement(v), expected)


@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 5)], ids=["each example's own", "one for all"])
def test_the_gradients_of_a_weighted_sum_are_its_derivatives(shape):
    inputs = [tensor.requires_grad_() for tensor in (*factors(), random(*shape, seed=2))]
    assert torch.autograd.gradcheck(lambda u, w, c: FactoredVotes.of(u, w, 3).weighted_sum(c), inputs)


def test_the_gradients_of_agreement_are_its_derivatives():
    inputs = [tensor.requires_grad_() for tensor in (*factors(), random(2, 3, 6, seed=2))]
    assert torch.autograd.gradcheck(lambda u, w, v: FactoredVotes.of(u, w, 3).agreement(v), inputs)


def test_routing_of_factors_is_routing_of_their_votes():
    u, weight = factors()
    routing = CpuRouting(3, True, random(3, 5, seed=2), random(3, 6, seed=3))
    torch.testing.assert_close(routing(FactoredVotes.of(u, weight, 3)), routing(votes(u, weight)))


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


def test_votes_are_never_written_down_in_training():
    """Nothing that lives for the backward pass is as large as they are."""
    layer = cpu_class_capsules(lower=50, lower_dim=4, upper=10, upper_dim=16, iterations=3)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        layer(torch.randn(32, 50, 4)).sum().backward()
    assert saved
    assert max(saved) < 32 * 50 * 10 * 16 / 2
