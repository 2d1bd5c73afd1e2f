import pytest
import torch
from torch import nn

from training.models.cpu.primary_capsules import CpuPrimaryMatrixCapsules
from training.models.forms import use_training_forms
from training.models.matrix_capsules import PrimaryMatrixCapsules


def both_forms():
    torch.manual_seed(0)
    plain = PrimaryMatrixCapsules(6, 3)
    built = nn.Sequential(PrimaryMatrixCapsules(6, 3))
    built[0].load_state_dict(plain.state_dict())
    use_training_forms(built)
    assert isinstance(built[0], CpuPrimaryMatrixCapsules)
    return plain, built[0]


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (2, 3, 0, 1)], ids=["maps", "channels last"])
def test_capsules_and_gradients_are_those_of_the_convolutions(layout):
    maps = torch.rand([(5, 6, 4, 3)[axis] for axis in layout])
    x = maps.permute(*(layout.index(axis) for axis in range(4))).requires_grad_()
    assert x.shape == (5, 6, 4, 3)
    found = []
    for layer in both_forms():
        poses, activations = layer(x)
        assert (poses.shape, activations.shape) == ((5, 12, 3, 16), (5, 12, 3))
        loss = poses.square().sum() + activations.square().sum()
        found.append([poses, activations, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_both_forms_stay_in_float32_under_autocast():
    x = torch.rand(2, 6, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        plain, fast = (layer(x) for layer in both_forms())
    torch.testing.assert_close(fast.poses, plain.poses)  # both float32
    assert fast.poses.dtype == torch.float32
