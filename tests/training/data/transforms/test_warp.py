import numpy as np
import pytest
import torch

from tests.training.data.transforms.test_affnist_style import center_of_mass
from training.config import WarpConfig
from training.data.seeding import RandomChoices
from training.data.synthetic.drawn_digits import draw_digits
from training.data.transforms.warp import random_warp

COUNT = 200


@pytest.fixture(scope="module")
def digits() -> torch.Tensor:
    return torch.from_numpy(draw_digits(np.arange(COUNT) % 10, np.random.default_rng(0)))[:, None]


def bent(images: torch.Tensor, repeat_edges: bool = False, **limits) -> torch.Tensor:
    choices = RandomChoices(torch.Generator().manual_seed(1), len(images))
    return random_warp(images, WarpConfig(**limits), choices, repeat_edges)


def bar(width: int = 2) -> torch.Tensor:
    """An upright bar in the middle of as many images, one pixel of ground left above and below."""
    images = torch.zeros(COUNT, 1, 28, 28, dtype=torch.uint8)
    images[:, :, 1:27, 14 - width // 2 : 14 + width // 2] = 255
    return images


def moments(images: torch.Tensor) -> torch.Tensor:
    """Covariance of where the ink is, [B, 2, 2] of (x, y), square pixels."""
    mass = images[:, 0].double()
    along = torch.arange(28).double() - 13.5
    rows, columns = torch.meshgrid(along, along, indexing="ij")
    places = torch.stack([columns, rows])  # [2, H, W]
    off = places - center_of_mass(images)[:, :, None, None]
    return torch.einsum("bhw,bihw,bjhw->bij", mass, off, off) / mass.sum(dim=(1, 2))[:, None, None]


def test_limits_of_nothing_change_nothing(digits):
    assert torch.equal(bent(digits), digits)


def test_a_bar_is_turned_to_either_side_as_far_as_allowed():
    found = moments(bent(bar(), rotation_degrees=30))
    degrees = torch.atan2(found[:, 0, 1], found[:, 1, 1]).rad2deg()
    assert degrees.abs().max() < 31
    assert degrees.max() > 25
    assert degrees.min() < -25


def test_each_axis_is_scaled_on_its_own():
    square = torch.zeros(COUNT, 1, 28, 28, dtype=torch.uint8)
    square[:, :, 9:19, 9:19] = 255
    before, after = moments(square[:1]), moments(bent(square, scales=(0.8, 1.2)))
    across, down = ((after[:, axis, axis] / before[:, axis, axis]).sqrt() for axis in (0, 1))
    for factors in (across, down):
        assert factors.min() > 0.78
        assert factors.max() < 1.22
        assert factors.std() > 0.08
    assert torch.corrcoef(torch.stack([across, down]))[0, 1].abs() < 0.2


def test_a_shear_moves_what_is_further_down():
    found = moments(bent(bar(), shear=0.3))
    shears = found[:, 0, 1] / found[:, 1, 1]
    assert shears.abs().max() < 0.31
    assert shears.std() > 0.12


def test_an_elastic_displacement_is_as_large_as_it_says_and_smooth(digits):
    ramp = torch.arange(28).mul(9).to(torch.uint8).expand(COUNT, 1, 28, 28)  # says where its pixels were
    inner = bent(ramp, repeat_edges=True, elastic_pixels=1.0)[:, 0, 6:22, 6:22].float() / 9
    moved = inner - torch.arange(6, 22)
    assert 0.5 < moved.std() < 1.1
    assert moved.diff(dim=1).abs().mean() < 0.25, "neighbors move together"
    assert (bent(digits, elastic_pixels=1.0) != digits).flatten(1).any(dim=1).all()


def test_strokes_become_wider_and_narrower():
    wide = bar(width=4)
    ink = bent(wide, thickness=1.0).float().sum(dim=(1, 2, 3)) / wide[0].float().sum()
    assert ink.max() > 1.4
    assert ink.min() < 0.6
    assert ink.median() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("repeat_edges", "outside"), [(False, 0), (True, 200)])
def test_what_comes_in_from_outside_is_black_or_the_edge(repeat_edges, outside):
    flat = torch.full((COUNT, 1, 28, 28), 200, dtype=torch.uint8)
    assert int(bent(flat, repeat_edges, scales=(0.5, 0.6)).min()) == outside
