import pytest
import torch

from training.models.capsules import ClassCapsules, PrimaryCapsules, RoutingByAgreement, squash


def route(u_hat, iterations=3, **options):
    return RoutingByAgreement(iterations, **options)(u_hat)


def votes(seed=0, batch=2, upper=3, lower=5, dim=4):
    return torch.randn(batch, upper, lower, dim, generator=torch.Generator().manual_seed(seed))


def test_squash_gives_the_length_of_equation_1_and_keeps_the_direction():
    s = torch.tensor([[3.0, 4.0], [0.03, 0.04]])
    v = squash(s)
    norm = s.norm(dim=-1)
    torch.testing.assert_close(v.norm(dim=-1), norm**2 / (1 + norm**2), rtol=1e-4, atol=0)
    torch.testing.assert_close(v / v.norm(dim=-1, keepdim=True), s / norm[:, None])


def test_squash_has_a_finite_gradient_at_zero():
    s = torch.zeros(1, 4, requires_grad=True)
    squash(s).sum().backward()
    assert torch.isfinite(s.grad).all()


def test_routing_follows_procedure_1():
    """Written out for one example with loops, straight from the paper."""
    u_hat = votes(batch=1)
    upper, lower, _ = u_hat[0].shape
    b = torch.zeros(lower, upper)
    for _ in range(3):
        c = torch.stack([torch.softmax(b[i], dim=0) for i in range(lower)])
        s = torch.stack([sum(c[i, j] * u_hat[0, j, i] for i in range(lower)) for j in range(upper)])
        v = squash(s)
        for i in range(lower):
            for j in range(upper):
                b[i, j] += u_hat[0, j, i] @ v[j]
    torch.testing.assert_close(route(u_hat)[0], v)


def test_routing_logits_belong_to_one_example():
    first, second = votes(1, batch=1), votes(2, batch=1)
    together = route(torch.cat([first, second]))
    torch.testing.assert_close(together, torch.cat([route(first), route(second)]))


def test_routing_favors_the_upper_capsule_whose_predictions_agree():
    u_hat = torch.randn(1, 2, 20, 4, generator=torch.Generator().manual_seed(0))
    u_hat[:, 0] = torch.tensor([0.6, 0.6, 0.0, 0.0])  # all lower capsules predict the same
    summed = 20 * 0.72**0.5 * torch.tensor([1 / 2, 1.0])  # |s| at even coupling, and if all went to it
    even, all_of_it = (summed**2 / (1 + summed**2)).tolist()
    assert route(u_hat, 1)[0, 0].norm().item() == pytest.approx(even)
    assert even < route(u_hat, 3)[0, 0].norm().item() < all_of_it


def test_coupling_coefficients_of_a_lower_capsule_sum_to_one():
    b = torch.randn(2, 3, 5)
    torch.testing.assert_close(RoutingByAgreement(1).couple(b).sum(dim=1), torch.ones(2, 5))


def test_none_of_the_above_takes_a_share_that_no_capsule_receives():
    b = torch.zeros(2, 3, 5)
    c = RoutingByAgreement(1, none_of_the_above=True).couple(b)
    assert c.shape == b.shape
    torch.testing.assert_close(c, torch.full_like(b, 1 / 4))


def test_learned_priors_are_the_initial_logits():
    u_hat = votes()
    priors = torch.randn(3, 5)
    s = torch.einsum("ji,bjid->bjd", priors.softmax(dim=0), u_hat)
    torch.testing.assert_close(route(u_hat, 1, priors=priors), squash(s))


def test_the_capsule_bias_is_added_before_the_squash():
    u_hat, bias = votes(), torch.randn(3, 4)
    torch.testing.assert_close(route(u_hat, 1, bias=bias), squash(u_hat.mean(dim=2) * 5 / 3 + bias))


def test_gradients_flow_through_all_routing_iterations():
    """A detached first iteration would give the gradient of fixed coupling coefficients."""
    u_hat = votes().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: route(x, 3), (u_hat,))


@pytest.mark.parametrize("iterations", [0, -1])
def test_fewer_than_one_iteration_is_an_error(iterations):
    with pytest.raises(ValueError, match=f"at least 1, got {iterations}"):
        RoutingByAgreement(iterations)


def test_a_primary_capsule_holds_the_channels_of_one_type_at_one_position():
    layer = PrimaryCapsules(1, types=2, pose_dim=3, kernel_size=1, stride=1)
    x = torch.arange(4.0).view(1, 1, 2, 2)
    maps = layer.conv(x)[0]  # [types * pose_dim, 2, 2]
    u = layer(x)
    assert u.shape == (1, 2 * 4, 3)
    for kind in range(2):
        for row in range(2):
            for column in range(2):
                expected = squash(maps[3 * kind : 3 * kind + 3, row, column])
                torch.testing.assert_close(u[0, kind * 4 + row * 2 + column], expected)


def test_a_coupled_primary_capsule_is_routed_from_one_capsule_to_all_types_in_one_iteration():
    """Each type's vote is what is convolved; the softmax of its logits, 0, is over the types."""
    layer = PrimaryCapsules(2, types=4, pose_dim=3, kernel_size=3, coupled=True)
    x = torch.randn(5, 2, 3, 3)  # one position
    votes = torch.nn.functional.conv2d(x, layer.conv.weight, stride=2).view(5, 4, 1, 3)
    expected = route(votes, 1, bias=layer.conv.bias.view(4, 3))
    torch.testing.assert_close(layer(x), expected)


def test_each_pair_of_capsules_has_its_own_matrix():
    layer = ClassCapsules(lower=3, lower_dim=2, upper=4, upper_dim=5, iterations=1)
    u = torch.randn(2, 3, 2)
    matrices = layer.weight.view(3, 2, 4, 5)
    torch.testing.assert_close(layer.votes(u), torch.einsum("bie,iejd->bjid", u, matrices))


def test_routing_stays_in_float32_under_autocast():
    layer = ClassCapsules(lower=3, lower_dim=2, upper=4, upper_dim=5, iterations=3)
    u = torch.randn(2, 3, 2)
    plain = layer(u)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(u), plain, rtol=0, atol=0)
