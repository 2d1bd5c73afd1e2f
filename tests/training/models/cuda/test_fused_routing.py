"""Routing by agreement in Triton is that of `capsules.py`: on CUDA compiled, elsewhere interpreted."""

import pytest
import torch

from tests.support.triton_here import DEVICE, MARKS
from training.models.capsules import ClassCapsules
from training.models.cuda.class_capsules import CudaClassCapsules
from training.models.cuda.fused_routing import CHUNK, IMAGES
from training.models.forms import use_training_forms

pytestmark = MARKS


def layers(lower, lower_dim, upper, upper_dim, iterations, **options):
    """By Triton and by array operations, with the same weights."""
    plain = ClassCapsules(lower, lower_dim, upper, upper_dim, iterations, **options)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    fused = ClassCapsules(lower, lower_dim, upper, upper_dim, iterations, **options)
    fused.load_state_dict(plain.state_dict())
    use_training_forms(torch.nn.Sequential(fused))
    assert isinstance(fused, CudaClassCapsules)
    return fused.to(DEVICE), plain.to(DEVICE)


def poses(count, layer):
    lower, lower_dim, _ = layer.weight.shape
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, lower, lower_dim, generator=generator).to(DEVICE).requires_grad_()


ALL = {"learned_priors": True, "none_of_the_above": True, "bias": True}
CASES = {
    "one iteration": ((5, 8, 3, 16, 1), 3, {}),
    "two iterations, sizes that fill no tile": ((3, 5, 3, 6, 2), 3, {}),
    "three iterations": ((5, 8, 10, 16, 3), 1, {}),
    "more images than in a tile": ((3, 4, 2, 4, 3), IMAGES + 1, {}),
    "more lower capsules than in a chunk": ((CHUNK + 1, 4, 2, 4, 2), 1, {}),
    "all options, one iteration": ((3, 4, 3, 4, 1), 3, ALL),
    "all options, three iterations": ((3, 4, 3, 4, 3), 3, ALL),
    "none of the above alone": ((3, 4, 3, 4, 3), 1, {"none_of_the_above": True}),
}


@pytest.mark.parametrize(("sizes", "count", "options"), CASES.values(), ids=CASES)
def test_it_is_the_reference_with_its_gradients(sizes, count, options):
    found, expected = [], []
    for layer, into in zip(layers(*sizes, **options), (found, expected), strict=True):
        u = poses(count, layer)
        v = layer.fused(u) if isinstance(layer, CudaClassCapsules) else layer(u)
        given = torch.randn(v.shape, generator=torch.Generator().manual_seed(2)).to(v)
        into.extend([v, *torch.autograd.grad(v, [u, *layer.parameters()], given)])
    for one, other in zip(found, expected, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * other.abs().max().item())


def test_lower_capsules_of_length_0_have_finite_gradients():
    layer, _ = layers(3, 4, 2, 4, 2)
    u = torch.zeros(2, 3, 4, device=DEVICE, requires_grad=True)
    for values in torch.autograd.grad(layer.fused(u).sum(), [u, layer.weight]):
        assert values.isfinite().all()


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # NumPy's, in the interpreter
def test_a_pose_that_is_no_number_is_seen_in_its_image_alone():
    layer, _ = layers(3, 4, 2, 4, 2)
    u = poses(2, layer).detach()
    u[0, 1, 2] = float("nan")
    v = layer.fused(u)
    assert v[0].isnan().any()
    assert v[1].isfinite().all()


@pytest.mark.skipif(DEVICE != "cuda", reason="there is no CUDA device here")
def test_class_capsules_on_cuda_use_it_while_they_are_trained():
    layer, plain = layers(40, 8, 10, 16, 3)
    u = poses(20, layer)
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.equal(layer(u), layer.fused(u))
    with torch.no_grad():
        assert torch.equal(layer(u), plain(u))
