import numpy as np
import pytest
import torch

from tests.support.gpu_sync import never_waiting
from training.data.images import Images
from training.data.seeding import RandomChoices
from training.data.synthetic.drawn_digits import draw_digits
from training.data.transforms.affnist_style import (
    affnist_style_set,
    offsets_within,
    random_maps,
    shifted,
    shifted_set,
    transform,
)


def digits(count: int = 40) -> Images:
    labels = np.arange(count) % 10
    drawn = torch.from_numpy(draw_digits(labels, np.random.default_rng(0)))
    return Images(drawn.reshape(count, 1, 28, 28), torch.from_numpy(labels))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def together(batches) -> Images:
    parts = list(batches)
    return Images(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))


def center_of_mass(pixels: torch.Tensor) -> torch.Tensor:
    """(x, y) from the center, pixels, [B, 2]."""
    mass = pixels[:, 0].double()
    along = torch.arange(pixels.shape[3]).double() - (pixels.shape[3] - 1) / 2
    total = mass.sum(dim=(1, 2))
    return (
        torch.stack([(mass.sum(dim=1) * along).sum(1), (mass.sum(dim=2) * along).sum(1)], 1) / total[:, None]
    )


def angle_scale_shear(maps: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rotation in degrees, scales of both axes and shear that make up maps [B, 2, 2]."""
    first = maps[:, :, 0]
    angle = torch.atan2(first[:, 1], first[:, 0])
    scale_x, scale_y = first.norm(dim=1), maps.det() / first.norm(dim=1)
    along = (first / scale_x[:, None] * maps[:, :, 1]).sum(dim=1)
    return angle.rad2deg(), scale_x, scale_y, along / scale_y


def test_a_shifted_digit_is_whole_and_anywhere_in_the_frame():
    pixels = torch.randint(1, 256, (600, 1, 28, 28), generator=generator(), dtype=torch.uint8)
    found = shifted(pixels, RandomChoices(generator(), len(pixels)))
    assert found.shape == (600, 1, 40, 40)
    corners = []
    for frame, image in zip(found, pixels, strict=True):
        top, left = (int((frame[0] > 0).any(dim=axis).nonzero()[0]) for axis in (1, 0))
        assert torch.equal(frame[:, top : top + 28, left : left + 28], image)
        assert int((frame > 0).sum()) == 28 * 28
        corners.append((top, left))
    for axis in zip(*corners, strict=True):
        assert set(axis) == set(range(13))


def test_the_same_generator_state_gives_the_same_places():
    pixels = digits().pixels
    first, again, other = (shifted(pixels, RandomChoices(generator(seed), len(pixels))) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("make", [shifted_set, affnist_style_set])
@pytest.mark.parametrize("batch", [1, 9, 40, 100])
def test_a_set_does_not_depend_on_the_batch_size(make, batch):
    images = digits()
    found, expected = (together(make(images, size, versions=2)) for size in (batch, 17))
    assert torch.equal(found.pixels, expected.pixels)
    assert torch.equal(found.labels, expected.labels)


@pytest.mark.parametrize("make", [shifted_set, affnist_style_set])
def test_a_set_is_the_same_each_time(make):
    first, again = (together(make(digits(), 16)).pixels for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("make", [shifted_set, affnist_style_set])
def test_each_version_has_all_images_in_their_order_in_places_of_their_own(make):
    images = digits()
    found = together(make(images, 16, versions=3))
    assert torch.equal(found.labels, images.labels.repeat(3))
    one, two, three = found.pixels.split(len(images))
    assert torch.equal(one, together(make(images, 16)).pixels)
    assert (one != two).flatten(1).any(dim=1).float().mean() > 0.9
    assert not torch.equal(two, three)


@pytest.mark.parametrize("make", [shifted_set, affnist_style_set])
def test_a_set_is_made_of_bytes_in_frames_of_40_pixels(make):
    found = next(make(digits(), 16))
    assert found.pixels.dtype == torch.uint8
    assert found.pixels.shape == (16, 1, 40, 40)


def test_maps_use_all_of_the_documented_ranges_and_no_more():
    angle, scale_x, scale_y, shear = angle_scale_shear(random_maps(5000, generator()).double())
    for values, low, high in (
        (angle, -20, 20),
        (scale_x, 0.8, 1.2),
        (scale_y, 0.8, 1.2),
        (shear, -0.2, 0.2),
    ):
        margin = (high - low) / 200
        assert low - 1e-5 <= values.min() < low + margin
        assert high - margin < values.max() <= high + 1e-5
        assert abs(values.mean() - (low + high) / 2) < 4 * margin


def test_scales_shear_and_rotation_are_independent():
    parameters = torch.stack(angle_scale_shear(random_maps(5000, generator()).double()))
    off_diagonal = torch.corrcoef(parameters) - torch.eye(4)
    assert off_diagonal.abs().max() < 0.06


def test_no_map_at_all_pads_the_image():
    pixels = digits().pixels
    found = transform(pixels, torch.eye(2).expand(40, 2, 2), torch.zeros(40, 2), 40)
    assert torch.equal(found, torch.nn.functional.pad(pixels, (6,) * 4))


def test_a_whole_offset_moves_the_image_right_and_down():
    pixels = digits(1).pixels
    found = transform(pixels, torch.eye(2)[None], torch.tensor([[3.0, -2.0]]), 40)
    assert torch.equal(found, torch.nn.functional.pad(pixels, (9, 3, 4, 8)))


def test_a_quarter_turn_turns_x_into_y():
    pixels = digits(1).pixels
    quarter = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    found = transform(pixels, quarter, torch.zeros(1, 2), 28)
    assert torch.equal(found, pixels.rot90(-1, (2, 3)))  # y points down: clockwise to the eye


def test_the_center_of_mass_goes_where_the_map_takes_it():
    images = digits()
    maps = random_maps(40, generator())
    offsets = offsets_within(images.pixels, maps, torch.rand(40, 2, generator=generator()), 40)
    found = transform(images.pixels, maps, offsets, 40)
    expected = (maps @ center_of_mass(images.pixels).float().unsqueeze(2)).squeeze(2) + offsets
    torch.testing.assert_close(center_of_mass(found).float(), expected, atol=0.2, rtol=0)


def test_ink_grows_as_the_area_does():
    images, maps = digits(), random_maps(40, generator())
    found = transform(images.pixels, maps, torch.zeros(40, 2), 60)
    growth = found.float().sum(dim=(1, 2, 3)) / images.pixels.float().sum(dim=(1, 2, 3))
    torch.testing.assert_close(growth, maps.det(), atol=0, rtol=0.08)


@pytest.mark.parametrize("where", [0.0, 1.0])
def test_no_ink_leaves_the_frame_even_at_its_edges(where):
    images, maps = digits(), random_maps(40, generator())
    offsets = offsets_within(images.pixels, maps, torch.full((40, 2), where), 40)
    found = transform(images.pixels, maps, offsets, 60)
    inner = found[:, :, 10:50, 10:50]
    assert found.sum() == inner.sum()
    edge = slice(0, 3) if where == 0 else slice(-3, None)
    assert inner[:, :, edge].flatten(1).any(dim=1).all()  # and yet it goes as far as it can
    assert inner[:, :, :, edge].flatten(1).any(dim=1).all()


def test_ink_too_large_for_the_frame_is_put_in_its_middle():
    pixels = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    offsets = offsets_within(pixels, torch.eye(2)[None] * 2, torch.tensor([[0.1, 0.9]]), 40)
    torch.testing.assert_close(offsets, torch.zeros(1, 2))


def test_an_empty_image_stays_empty():
    empty = Images(torch.zeros(3, 1, 28, 28, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    assert together(affnist_style_set(empty, 2)).pixels.sum() == 0


@pytest.mark.gpu
def test_shifting_into_a_frame_never_waits_for_the_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    pixels = digits().pixels.cuda()
    source = RandomChoices(torch.Generator("cuda").manual_seed(0), len(pixels))
    shifted(pixels, source)  # the first call may allocate and synchronize
    with never_waiting():
        shifted(pixels, source)


@pytest.mark.gpu
def test_the_affnist_style_set_is_the_same_on_the_gpu_up_to_rounding():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    images = digits()
    on_gpu = together(affnist_style_set(images.to(torch.device("cuda")), 16)).pixels.cpu().int()
    assert (on_gpu - together(affnist_style_set(images, 16)).pixels.int()).abs().max() <= 1
