"""EM routing in Triton is the EM routing of `em.py`: on CUDA compiled, elsewhere in Triton's interpreter."""

import pytest
import torch

from tests.support.triton_here import DEVICE, MARKS
from training.models.cuda import fused_em
from training.models.em import Capsules, EMConstants, EMRouting, ReceptiveFields
from training.models.fused_matrix_capsules import FusedMatrixCapsules

pytestmark = MARKS


def layer(fields, types, parents, iterations, exponent=1.0, seed=0, calibrated=False, **options):
    torch.manual_seed(seed)
    constants = EMConstants(density_exponent=exponent)
    routing = EMRouting(parents, iterations, constants, calibrated=calibrated)
    torch.nn.init.normal_(routing.beta_u)
    torch.nn.init.normal_(routing.beta_a, std=0.01)
    return FusedMatrixCapsules(fields, types, routing, matrix_noise=0.3, **options).to(DEVICE)


def convolutional(size=4, stride=1, types=1, parents=2, iterations=3, **options):
    return layer(ReceptiveFields.sliding(size, 3, stride), types, parents, iterations, **options)


def class_layer(positions=4, types=3, parents=5, iterations=3, **options):
    """Of one position; children of a type share a matrix, and their places are added to their votes."""
    places = torch.rand(positions, 2, generator=torch.Generator().manual_seed(0))
    fields = ReceptiveFields.everything(positions)
    return layer(fields, types, parents, iterations, shared=True, coordinates=places, **options)


def children(routed, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    places, types = len(routed.fields.counts), routed.weight.shape[1]
    poses = torch.randn(count, places, types, 16, generator=generator)
    activations = torch.rand(count, places, types, generator=generator)
    return Capsules(*(part.to(DEVICE).requires_grad_() for part in (poses, activations)))


def by_both(routed, capsules):
    """By Triton, and by the reference."""
    seen = routed.votes(capsules.poses), routed.fields.seen(capsules.activations)
    return routed.fused(capsules, fused_em.route), routed.routing(*seen, routed.fields, routed.shares)


def gradients(routed, capsules, parents):
    generator = torch.Generator().manual_seed(2)
    given = [torch.randn(part.shape, generator=generator).to(part) for part in parents]
    return torch.autograd.grad([*parents], [*capsules, *routed.parameters()], given)


CASES = {
    "one iteration": (lambda: convolutional(iterations=1), 3),
    "two iterations, stride 2": (lambda: convolutional(5, 2, types=2, iterations=2), 1),
    "three iterations": (lambda: convolutional(), 3),
    "softer, stride 2": (lambda: convolutional(5, 2, types=2, exponent=0.25), 1),
    "children that no parent sees": (lambda: convolutional(6, 2, parents=1, iterations=2), 1),
    "more examples than in a tile": (
        lambda: layer(ReceptiveFields.sliding(2, 2, 1), 1, 2, 2),
        fused_em.EXAMPLES + 3,
    ),
    "children that fill their tiles": (lambda: class_layer(4, 2 * fused_em.CHILDREN // 4, 2, 2), 3),
    "class capsules": (lambda: class_layer(), 3),
    "class capsules, softer": (lambda: class_layer(exponent=0.25), 1),
    "lambda is a tensor": (lambda: convolutional(calibrated=True, iterations=2), 3),
}


@pytest.mark.parametrize(("make", "count"), CASES.values(), ids=CASES)
def test_it_is_the_reference_with_its_gradients(make, count):
    routed = make()
    capsules = children(routed, count)
    found, expected = by_both(routed, capsules)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    pairs = zip(*(gradients(routed, capsules, parents) for parents in (found, expected)), strict=True)
    for one, other in pairs:
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * other.abs().max().item())


def test_gradients_repeat_to_the_bit():
    routed = class_layer(positions=2, parents=2, iterations=2)
    capsules = children(routed, 3)
    first, again = (gradients(routed, capsules, by_both(routed, capsules)[0]) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


def test_activations_that_are_nearly_1_still_have_gradients():
    """Where 1 - a has no digits left in float32."""
    routed = class_layer(positions=2, iterations=2)
    torch.nn.init.constant_(routed.routing.beta_a, 10.0)
    both = by_both(routed, children(routed, 2))
    assert both[0].activations.max() == 1
    found, expected = (
        torch.autograd.grad(parents.activations.sum(), routed.routing.beta_a)[0] for parents in both
    )
    assert found.min() > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("scale", [(1, 0), (0, 1), (1e3, 1)], ids=["no child", "one pose", "far apart"])
def test_extreme_children_give_finite_parents_and_gradients(scale):
    routed = class_layer(positions=2)
    capsules = children(routed, 1)
    capsules = Capsules(*(factor * part.detach() for factor, part in zip(scale, capsules, strict=True)))
    capsules = Capsules(*(part.requires_grad_() for part in capsules))
    found = routed.fused(capsules, fused_em.route)
    for values in (*found, *gradients(routed, capsules, found)):
        assert values.isfinite().all()


def test_a_pose_that_is_no_number_is_seen_in_its_example_alone():
    routed = class_layer(positions=2)
    capsules = children(routed, 2)
    with torch.no_grad():
        capsules.poses[0, 0, 0, 0] = float("nan")
    found = routed.fused(capsules, fused_em.route)
    assert found.poses[0].isnan().any()
    assert found.poses[1].isfinite().all()


@pytest.mark.skipif(DEVICE != "cuda", reason="there is no CUDA device here")
def test_a_layer_on_cuda_uses_it():
    routed = convolutional(5, 2, types=2, parents=3)
    capsules = children(routed, 3)
    fused, _ = by_both(routed, capsules)
    for one, other in zip(routed(capsules), fused, strict=True):
        assert torch.equal(one, other)
