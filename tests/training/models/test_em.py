"""EM routing against the paper's Procedure 1, written down with plain loops, and against what it shall do."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from training.models.cpu.lanes import LANES
from training.models.em import (
    OFFICIAL,
    OFFICIAL_OF_CLASSES,
    Capsules,
    EMConstants,
    EMRouting,
    ReceptiveFields,
)
from training.models.fused_matrix_capsules import FusedMatrixCapsules
from training.models.matrix_capsules import AT_ONCE

SIZE, KERNEL, TYPES, PARENTS = 5, 3, 2, 3


def procedure_1(votes, activations, parents_of, routing):
    """Of one example: votes[p][j][n], activations[p][n], for each (p, n) all (p', n') of the same child."""
    constants = routing.constants
    positions, types, children = len(votes), len(votes[0]), len(votes[0][0])
    everywhere = [(p, j) for p in range(positions) for j in range(types)]
    r = {(p, j, n): 1 / (types * len(parents_of[p, n])) for p, j in everywhere for n in range(children)}
    mu = {(p, j, h): 0.0 for p, j in everywhere for h in range(16)}
    for t in range(routing.iterations):
        before, mu, var, a = mu, {}, {}, {}
        for p, j in everywhere:  # M-step
            mass = [r[p, j, n] * activations[p][n] for n in range(children)]
            total = sum(mass)
            for h in range(16):
                of_h = [votes[p][j][n][h] for n in range(children)]
                mu[p, j, h] = sum(m * v for m, v in zip(mass, of_h, strict=True)) / (
                    total + constants.mass_floor
                )
                inertia = constants.mean_inertia  # the official code's
                mu[p, j, h] = (1 - inertia) * mu[p, j, h] + inertia * before[p, j, h]
                spread = sum(m * (v - mu[p, j, h]) ** 2 for m, v in zip(mass, of_h, strict=True))
                var[p, j, h] = spread / (total + constants.mass_floor) + constants.variance_floor
            if routing.mixing_proportions:
                a[p, j] = total + constants.mass_floor
                continue
            beta_u, beta_a = routing.beta_u[j].item(), routing.beta_a[j].item()
            cost = sum((beta_u + math.log(math.sqrt(var[p, j, h]))) * total for h in range(16))
            cost *= constants.cost_scale  # the official code's
            lam = constants.inverse_temperature * (1 - constants.inverse_temperature_decay ** (t + 1))
            a[p, j] = 1 / (1 + math.exp(-lam * (constants.activation_cost * beta_a - cost)))
        if routing.mixing_proportions:
            a = {parent: mass / sum(a.values()) for parent, mass in a.items()}
        if t + 1 == routing.iterations:
            return mu, a
        density = {}
        for p, j in everywhere:  # E-step
            for n in range(children):
                exponent = sum((votes[p][j][n][h] - mu[p, j, h]) ** 2 / (2 * var[p, j, h]) for h in range(16))
                norm = math.prod(math.sqrt(2 * math.pi * var[p, j, h]) for h in range(16))
                density[p, j, n] = a[p, j] * (math.exp(-exponent) / norm) ** constants.density_exponent
        r = {
            (p, j, n): density[p, j, n]
            / sum(density[q, k, m] for q, m in parents_of[p, n] for k in range(types))
            for p, j, n in density
        }
    raise AssertionError


def same_child(fields, types):
    """For each child as a parent sees it, (p, n), all the ways in which parents see it."""
    names = {
        (p, k * types + i): (int(child), i)
        for p, row in enumerate(fields.inside)
        for k, child in enumerate(row)
        for i in range(types)
    }
    return {key: [other for other, name in names.items() if name == names[key]] for key in names}


def layer(stride=1, iterations=3, seed=0, **options):
    torch.manual_seed(seed)
    routing = EMRouting(PARENTS, iterations, options.pop("constants", None), options.pop("mixing", False))
    if not routing.mixing_proportions:
        torch.nn.init.normal_(routing.beta_u)
        torch.nn.init.normal_(routing.beta_a, std=0.01)
    return FusedMatrixCapsules(ReceptiveFields.sliding(SIZE, KERNEL, stride), TYPES, routing, **options)


def children(count=2, seed=1, positions=SIZE**2):
    generator = torch.Generator().manual_seed(seed)
    poses = torch.randn(count, positions, TYPES, 16, generator=generator)
    return Capsules(poses, torch.rand(count, positions, TYPES, generator=generator))


def by_array_operations(layer, capsules):
    seen = layer.fields.seen(capsules.activations)
    return layer.routing(layer.votes(capsules.poses), seen, layer.fields, layer.shares)


def by_both(layer, capsules):
    """As it is trained on a CPU, and as it is trained elsewhere and exported."""
    assert layer.can_be_fused(capsules.poses)
    return {"fused": layer(capsules), "array operations": by_array_operations(layer, capsules)}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("iterations", "exponent"), [(1, 1), (2, 1), (3, 1), (2, 0.25), (3, 0.25)])
def test_it_is_the_papers_procedure(stride, iterations, exponent):
    """With the exponent 1; below, the density in its E-step is raised to that power."""
    routed = layer(stride, iterations, constants=EMConstants(density_exponent=exponent))
    capsules = children(1)
    votes = routed.votes(capsules.poses)[0].tolist()
    seen = routed.fields.seen(capsules.activations)[0].tolist()
    mu, a = procedure_1(votes, seen, same_child(routed.fields, TYPES), routed.routing)
    for how, (poses, activations) in by_both(routed, capsules).items():
        for (p, j), expected in a.items():
            assert activations[0, p, j].item() == pytest.approx(expected, abs=1e-5), how
            mean = torch.tensor([mu[p, j, h] for h in range(16)])
            torch.testing.assert_close(poses[0, p, j], mean, rtol=0, atol=1e-5, msg=how)


@pytest.mark.parametrize("constants", [OFFICIAL, OFFICIAL_OF_CLASSES])
def test_the_official_variant_is_the_procedure_with_inert_means_and_double_costs(constants):
    routed, plain = layer(constants=constants), layer()
    capsules = children(1)
    votes = routed.votes(capsules.poses)[0].tolist()
    seen = routed.fields.seen(capsules.activations)[0].tolist()
    mu, a = procedure_1(votes, seen, same_child(routed.fields, TYPES), routed.routing)
    assert not routed.can_be_fused(capsules.poses)
    found = routed(capsules)
    for (p, j), expected in a.items():
        assert found.activations[0, p, j].item() == pytest.approx(expected, abs=1e-5)
        mean = torch.tensor([mu[p, j, h] for h in range(16)])
        torch.testing.assert_close(found.poses[0, p, j], mean, rtol=0, atol=1e-5)
    assert (found.poses - plain(capsules).poses).abs().max() > 0.01
    assert (found.activations - plain(capsules).activations).abs().max() > 0.01


@pytest.mark.parametrize("iterations", [1, 3])
def test_mixing_proportions_are_shares_of_what_is_assigned_in_the_last_iteration(iterations):
    routed, capsules = layer(iterations=iterations, mixing=True), children(1)
    votes = routed.votes(capsules.poses)[0].tolist()
    seen = routed.fields.seen(capsules.activations)[0].tolist()
    mu, a = procedure_1(votes, seen, same_child(routed.fields, TYPES), routed.routing)
    found = routed(capsules)
    for (p, j), expected in a.items():
        assert found.activations[0, p, j].item() == pytest.approx(expected, rel=1e-4)
        mean = torch.tensor([mu[p, j, h] for h in range(16)])
        torch.testing.assert_close(found.poses[0, p, j], mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"mixing": True}])
def test_without_gradients_examples_are_routed_in_parts_with_the_same_result(options):
    routed, capsules = layer(**options), children(2 * AT_ONCE + 3)
    expected = routed(capsules)
    with torch.no_grad():
        for found, together in zip(routed(capsules), expected, strict=True):
            torch.testing.assert_close(found, together)


@pytest.mark.parametrize("options", [{"mixing": True}, {"vector_poses": True}, {"constants": OFFICIAL}])
def test_votes_that_are_written_down_for_gradients_are_those_of_few_examples(options, monkeypatch):
    routed, capsules = layer(**options), Capsules(*(part.requires_grad_() for part in children(5)))
    assert not routed.can_be_fused(capsules.poses)
    together = []
    routed.routing.register_forward_pre_hook(lambda _, arguments: together.append(len(arguments[0])))

    def gradients():
        parents = routed(capsules)
        loss = parents.poses.square().sum() + parents.activations.sum()
        return torch.autograd.grad(loss, [*routed.parameters(), *capsules])

    expected = gradients()
    assert together == [5]
    votes = routed.votes(capsules.poses)[0].numel()  # of an example
    monkeypatch.setattr("training.models.matrix_capsules.VOTES_AT_ONCE", 3 * votes - 1)
    torch.testing.assert_close(gradients(), expected, rtol=1e-4, atol=1e-5)
    assert sorted(together[1:]) == [1, 1, 2, 2, 2, 2]  # each once more on the way back
    together.clear()
    with torch.no_grad():
        routed(capsules)
    assert together == [2, 2, 1]


def test_of_no_examples_there_are_no_parents():
    assert [len(found) for found in layer()(Capsules(*(part[:0] for part in children())))] == [0, 0]


def assignments(layer, capsules):
    """Those of every M-step, [B, P, J, N] each."""
    found = []

    class Watched(EMRouting):
        def _fit(self, mass, *others):
            found.append(mass)
            return super()._fit(mass, *others)

    layer.routing.__class__ = Watched
    everywhere = Capsules(capsules.poses, torch.ones_like(capsules.activations))
    by_array_operations(layer, everywhere)
    return [mass.expand(len(capsules.poses), -1, PARENTS, -1) for mass in found]


@pytest.mark.parametrize("stride", [1, 2])
def test_a_childs_assignments_to_all_types_at_all_positions_sum_to_one(stride):
    routed, capsules = layer(stride), children()
    names = (routed.fields.inside[:, :, None] * TYPES + torch.arange(TYPES)).flatten(1)
    for shares in assignments(routed, capsules):
        sums = torch.zeros(len(capsules.poses), SIZE**2 * TYPES)
        sums.index_add_(1, names.flatten(), shares.sum(dim=2).flatten(1))
        torch.testing.assert_close(sums, torch.ones_like(sums))


def test_a_child_that_no_parent_sees_belongs_to_none():
    fields = ReceptiveFields.sliding(6, 3, 2)  # the last row and column lie beyond the last field
    assert fields.inside.shape == (4, 9)
    assert 35 not in fields.inside
    assert fields.counts[35] == 0


def test_two_clusters_of_votes_end_in_two_parents():
    generator = torch.Generator().manual_seed(0)
    centers = torch.tensor([-1.0, 1.0]).repeat_interleave(10)  # of twenty children
    votes = centers[:, None] + 0.05 * torch.randn(2, 20, 16, generator=generator)
    routing = EMRouting(2, iterations=6, constants=EMConstants(inverse_temperature=1, activation_cost=1))
    tilt = torch.tensor([0.02, -0.02])[:, None, None] * torch.ones(2, 20, 16)  # no two parents are the same
    fields = ReceptiveFields.everything(20)
    found = routing(
        (votes + tilt)[None, None], torch.ones(1, 1, 20), fields, routing.initial_assignments(fields, 1)
    )
    assert sorted(found.poses[0, 0].mean(dim=1).tolist()) == pytest.approx([-1, 1], abs=0.1)
    assert found.activations.min() > 0.99


def test_halving_the_childrens_activations_changes_the_parents():
    routed, (poses, activations) = layer(), children()
    for how in ("fused", "array operations"):
        whole = by_both(routed, Capsules(poses, activations))[how]
        half = by_both(routed, Capsules(poses, activations / 2))[how]
        assert (whole.activations - half.activations).abs().max() > 1e-3, how


def test_the_order_of_the_children_does_not_matter():
    torch.manual_seed(0)
    votes, activations = torch.randn(2, 1, PARENTS, 12, 16), torch.rand(2, 1, 12)
    routing, order = EMRouting(PARENTS, 3), torch.randperm(12)
    fields = ReceptiveFields.everything(12)
    shares = routing.initial_assignments(fields, 1)
    found = routing(votes, activations, fields, shares)
    again = routing(votes[:, :, :, order], activations[:, :, order], fields, shares)
    for one, other in zip(found, again, strict=True):
        torch.testing.assert_close(one, other)


def test_nor_does_the_order_of_types_with_their_matrices():
    routed, (poses, activations) = layer(), children()
    found = by_both(routed, Capsules(poses, activations))
    with torch.no_grad():
        routed.weight.copy_(routed.weight.flip(1))
    again = by_both(routed, Capsules(poses.flip(2), activations.flip(2)))
    for how in found:
        for one, other in zip(found[how], again[how], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_examples_do_not_know_of_each_other():
    routed, capsules = layer(), children(4)
    for how, together in by_both(routed, capsules).items():
        for example in range(4):
            alone = Capsules(*(part[example : example + 1] for part in capsules))
            for one, all_ in zip(by_both(routed, alone)[how], together, strict=True):
                torch.testing.assert_close(one[0], all_[example])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("exponent", [1, 0.25])
@pytest.mark.parametrize("places", [None, torch.rand(SIZE**2, 2)], ids=["", "with places"])
def test_gradients_by_hand_are_those_of_the_array_operations(stride, places, exponent):
    routed = layer(stride, constants=EMConstants(density_exponent=exponent))
    if places is not None:
        routed.offsets[:, 3] = places[routed.fields.inside[0], 0].repeat_interleave(TYPES)
    capsules = Capsules(*(part.requires_grad_() for part in children(3)))
    wanted = [*capsules, *routed.parameters()]
    generator = torch.Generator().manual_seed(2)
    gradients = {}
    for how, found in by_both(routed, capsules).items():
        coming = [torch.randn(part.shape, generator=generator.manual_seed(3)) for part in found]
        gradients[how] = torch.autograd.grad([*found], wanted, coming)
    for one, other in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * other.abs().max().item())


def test_activations_that_are_nearly_1_still_have_gradients():
    """Where 1 - a has no digits left in float32."""
    routed, capsules = layer(), children()
    torch.nn.init.constant_(routed.routing.beta_a, 10.0)
    gradients = {}
    for how, found in by_both(routed, capsules).items():
        assert found.activations.max() == 1
        [gradients[how]] = torch.autograd.grad(found.activations.sum(), routed.routing.beta_a)
    assert gradients["fused"].min() > 0
    torch.testing.assert_close(*gradients.values(), rtol=1e-3, atol=0)


def test_any_number_of_threads_gives_the_same_to_the_bit():
    routed, capsules = layer(), children(2 * LANES + 5)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            routed.zero_grad()
            parents = routed(capsules)
            (parents.poses.sum() + parents.activations.sum()).backward()
            found.append([*parents, *(parameter.grad for parameter in routed.parameters())])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert torch.equal(one, same)


@pytest.mark.parametrize("count", [1, LANES, LANES + 1])
def test_gradients_are_right_however_many_examples_fill_the_lanes(count):
    routed, capsules = layer(), Capsules(*(part.requires_grad_() for part in children(count)))
    wanted, gradients = [*capsules, *routed.parameters()], []
    for found in by_both(routed, capsules).values():
        loss = found.poses.square().sum() + found.activations.sum()
        gradients.append(torch.autograd.grad(loss, wanted))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * other.abs().max().item())


def zero_activations(capsules):
    return Capsules(capsules.poses, torch.zeros_like(capsules.activations))


def identical_votes(capsules):
    return Capsules(torch.zeros_like(capsules.poses), capsules.activations)


def far_apart(capsules):
    return Capsules(1e3 * capsules.poses, capsules.activations)


@pytest.mark.parametrize("case", [zero_activations, identical_votes, far_apart])
def test_values_and_gradients_stay_finite(case):
    routed, capsules = layer(), Capsules(*(part.requires_grad_() for part in case(children())))
    for how, found in by_both(routed, capsules).items():
        loss = found.poses.square().sum() + found.activations.sum()
        gradients = torch.autograd.grad(loss, [*capsules, *routed.parameters()])
        for values in (*found, *gradients):
            assert values.isfinite().all(), how


def test_one_child_is_its_only_parents_pose():
    routing, fields = EMRouting(1, 3), ReceptiveFields.everything(1)
    vote = torch.randn(1, 1, 1, 1, 16, requires_grad=True)
    found = routing(vote, torch.ones(1, 1, 1), fields, routing.initial_assignments(fields, 1))
    torch.testing.assert_close(found.poses[0, 0, 0], vote[0, 0, 0, 0])
    [gradient] = torch.autograd.grad(found.activations.sum() + found.poses.sum(), vote)
    assert gradient.isfinite().all()
    torch.manual_seed(0)
    alone = FusedMatrixCapsules(ReceptiveFields.everything(1), 1, EMRouting(1, 3))
    capsules = Capsules(torch.randn(1, 1, 1, 16), torch.ones(1, 1, 1))
    for how, parents in by_both(alone, capsules).items():
        torch.testing.assert_close(parents.poses[0, 0, 0], alone.votes(capsules.poses).flatten(), msg=how)


def test_nothing_is_larger_than_the_votes():
    """Neither of what is kept for the backward pass, nor, where votes are written down, of what is made."""

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            several = found if isinstance(found, (tuple, list)) else [found]
            made.extend(each.numel() for each in several if isinstance(each, torch.Tensor))
            return found

    routed, capsules = layer(), Capsules(*(part.requires_grad_() for part in children(16)))
    votes = routed.votes(capsules.poses).numel()
    made: list[int] = []
    with Sizes():
        found = by_array_operations(routed, capsules)
        (found.poses.sum() + found.activations.sum()).backward()
    assert max(made) == votes
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        routed(capsules)
    iterations, children_of_a_parent = routed.routing.iterations, KERNEL**2 * TYPES
    gaussians, assignments = iterations * votes // children_of_a_parent, (iterations - 1) * votes // 16
    assert sorted(kept)[-3:] == [assignments, gaussians, gaussians]


def test_what_compiled_routing_keeps_is_let_go_by_the_backward_pass():
    capsules = Capsules(*(part.requires_grad_() for part in children(8)))
    loss = layer()(capsules).poses.sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_compiled_routing_rounds_alike_wherever_its_arrays_lie():
    """Else a run that was stopped and resumed is not to the bit the one that never stopped."""
    torch.manual_seed(0)
    routed = FusedMatrixCapsules(ReceptiveFields.everything(9), TYPES, EMRouting(PARENTS, 2))
    capsules = Capsules(*(part.requires_grad_() for part in children(4, positions=9)))
    random, between = np.random.default_rng(0), []
    found = set()
    for _ in range(1000):
        between = [*between[-100:], np.empty(random.integers(1, 400), np.uint8)]  # arrays lie elsewhere
        parents = routed(capsules)
        loss = parents.poses.sum() + parents.activations.sum()
        gradients = torch.autograd.grad(loss, [*capsules, *routed.parameters()])
        found.add(b"".join(part.detach().numpy().tobytes() for part in (*parents, *gradients)))
    assert len(found) == 1


@pytest.mark.parametrize("draws", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_random_draws_stay_finite(draws):
    """Of poses from tiny to huge and of activations from 0 to 1, many of them exactly 0 or 1."""
    torch.manual_seed(0)
    routed = FusedMatrixCapsules(ReceptiveFields.everything(4), TYPES, EMRouting(PARENTS, 3))
    scale = 10 ** (8 * torch.rand(draws, 1, 1, 1) - 6)
    poses = scale * torch.randn(draws, 4, TYPES, 16)
    activations = (3 * torch.rand(draws, 4, TYPES) - 1).clamp(0, 1)
    capsules = Capsules(poses.requires_grad_(), activations.requires_grad_())
    for how, found in by_both(routed, capsules).items():
        loss = found.poses.sum() + found.activations.sum()
        for values in (*found, *torch.autograd.grad(loss, [*capsules, *routed.parameters()])):
            assert values.isfinite().all(), how


def test_draws_at_positions_that_share_children_stay_finite():
    torch.manual_seed(0)
    routing = EMRouting(PARENTS, 3)
    routed = FusedMatrixCapsules(ReceptiveFields.sliding(3, 2, 1), TYPES, routing)
    for _ in range(20):
        torch.nn.init.normal_(routing.beta_u, std=3)
        torch.nn.init.normal_(routing.beta_a, std=0.1)
        scale = 10 ** (8 * torch.rand(200, 1, 1, 1) - 6)
        activations = (3 * torch.rand(200, 9, TYPES) - 1).clamp(0, 1)
        capsules = Capsules(
            (scale * torch.randn(200, 9, TYPES, 16)).requires_grad_(), activations.requires_grad_()
        )
        for how, found in by_both(routed, capsules).items():
            loss = found.poses.sum() + found.activations.sum()
            for values in (*found, *torch.autograd.grad(loss, [*capsules, *routed.parameters()])):
                assert values.isfinite().all(), how


def test_no_iteration_is_an_error():
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        EMRouting(2, 0)


def test_mixing_proportions_of_nothing_stay_finite():
    routed = layer(mixing=True)
    capsules = Capsules(*(part.requires_grad_() for part in zero_activations(children())))
    found = routed(capsules)
    gradients = torch.autograd.grad(found.activations.sum() + found.poses.sum(), [*capsules])
    for values in (*found, *gradients):
        assert values.isfinite().all()


def test_a_pose_that_is_no_number_is_seen_in_what_comes_of_it():
    routed, (poses, activations) = layer(), children()
    poses[0, 0, 0, 0] = float("nan")
    for how, found in by_both(routed, Capsules(poses, activations)).items():
        assert found.poses[0].isnan().any(), how
        assert found.poses[1].isfinite().all(), how


def test_mixing_proportions_sum_to_one_over_the_layer():
    routed = layer(mixing=True)
    assert not routed.can_be_fused(children().poses)
    found = routed(children())
    torch.testing.assert_close(found.activations.sum(dim=(1, 2)), torch.ones(2))


def test_mixing_proportions_have_no_parameters_that_nothing_learns():
    assert [name for name, _ in layer(mixing=True).named_parameters()] == ["weight"]


def test_an_ablation_with_vectors_has_a_vote_per_matrix():
    routed, capsules = layer(vector_poses=True), children()
    assert not routed.can_be_fused(capsules.poses)
    votes = routed.votes(capsules.poses)
    child = int(routed.fields.inside[4, 5])
    expected = capsules.poses[1, child, 1] @ routed.weight[5, 1, 2]
    torch.testing.assert_close(votes[1, 4, 2, 5 * TYPES + 1], expected)


def test_a_vote_is_the_childs_pose_times_the_matrix():
    routed, capsules = layer(), children()
    child = int(routed.fields.inside[4, 5])
    expected = capsules.poses[1, child, 1].view(4, 4) @ routed.weight[5, 1, 2]
    torch.testing.assert_close(routed.votes(capsules.poses)[1, 4, 2, 5 * TYPES + 1], expected.flatten())


def test_under_autocast_routing_stays_in_float32():
    routed, capsules = layer(), children()
    expected = routed(capsules)
    with torch.autocast("cpu", torch.bfloat16):
        found = routed(capsules)
    assert torch.equal(found.poses, expected.poses)


@pytest.mark.parametrize("exponent", [1, 0.25])
def test_gradients_are_those_of_finite_differences(exponent):
    constants = EMConstants(inverse_temperature=1, activation_cost=1, density_exponent=exponent)
    routing, fields = EMRouting(2, 3, constants).double(), ReceptiveFields.everything(3)
    generator = torch.Generator().manual_seed(0)
    votes = torch.randn(1, 1, 2, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    activations = torch.rand(1, 1, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    shares = routing.initial_assignments(fields, 1)
    assert torch.autograd.gradcheck(
        lambda *given: tuple(routing(*given, fields, shares)), (votes, activations)
    )


def test_softer_assignments_keep_nearly_equal_types_together():
    """Votes that differ by noise alone: EM drives the types apart, and far less below exponent 1."""
    generator = torch.Generator().manual_seed(0)
    votes = torch.randn(4, 1, 1, 30, 16, generator=generator) @ torch.randn(16, 16, generator=generator)
    votes = votes + 0.03 * torch.randn(4, 1, 3, 30, 16, generator=generator)
    apart = {}
    for exponent in (1.0, 0.25):
        routing = EMRouting(3, 3, EMConstants(density_exponent=exponent))
        fields = ReceptiveFields.everything(30)
        found = routing(votes, torch.ones(4, 1, 30), fields, routing.initial_assignments(fields, 1))
        apart[exponent] = found.poses.std(dim=2).mean().item()
    assert apart[0.25] < 0.5 * apart[1.0]
