import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from tests.support.gpu_sync import never_waiting
from training.config.data import WarpConfig
from training.data.seeding import RandomChoices
from training.data.transforms.augment import (
    center_crop,
    clamped_brightness,
    clamped_contrast,
    random_brightness_contrast,
    random_crop,
    random_flip,
    random_shift,
    resize,
)
from training.data.transforms.warp import random_warp
from training.models.standardize import adjust_brightness_contrast


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def choices(images: torch.Tensor, seed: int = 0) -> RandomChoices:
    return RandomChoices(generator(seed), len(images))


def all_shifts(image: torch.Tensor, max_shift: int) -> torch.Tensor:
    """Every window of the zero-padded image [C, H, W]: [(2 max_shift + 1)^2, C, H, W]."""
    _, height, width = image.shape
    padded = F.pad(image, (max_shift,) * 4)
    places = range(2 * max_shift + 1)
    return torch.stack([padded[:, y : y + height, x : x + width] for y in places for x in places])


def which_shift(shifted: torch.Tensor, image: torch.Tensor, max_shift: int) -> int:
    """Number of the window that the shifted image equals; fails unless it is exactly one."""
    same = (all_shifts(image, max_shift) == shifted).flatten(1).all(dim=1)
    assert same.sum() == 1
    return int(same.nonzero())


@pytest.mark.parametrize("max_shift", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_output_is_a_zero_padded_shift_of_its_own_input(max_shift, dtype):
    images = torch.randint(1, 256, (32, 3, 7, 9), generator=generator(), dtype=torch.uint8).to(dtype)
    shifted = random_shift(images, max_shift, choices(images))
    assert shifted.dtype == dtype
    assert shifted.shape == images.shape
    for output, image in zip(shifted, images, strict=True):
        which_shift(output, image, max_shift)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_shift_can_repeat_the_edges(dtype):
    images = torch.randint(1, 256, (32, 3, 7, 9), generator=generator(), dtype=torch.uint8).to(dtype)
    shifted = random_shift(images, 2, choices(images), repeat_edges=True)
    zero_padded = random_shift(images, 2, choices(images))  # by as much: the generator's state is the same
    padded = F.pad(images.float(), (2, 2, 2, 2), mode="replicate")
    for output, image, around, zeros in zip(shifted, images, padded, zero_padded, strict=True):
        y, x = divmod(which_shift(zeros, image, 2), 5)
        assert torch.equal(output, around[:, y : y + 7, x : x + 9].to(dtype))


def test_all_shifts_occur_equally_often():
    max_shift, repetitions = 2, 400
    image = torch.arange(1, 26, dtype=torch.float32).reshape(1, 1, 5, 5)
    images = image.expand(25 * repetitions, 1, 5, 5)
    shifted = random_shift(images, max_shift, choices(images))
    windows = all_shifts(image[0], max_shift)
    counts = (shifted[:, None] == windows).flatten(2).all(dim=2).sum(dim=0)
    assert counts.sum() == 25 * repetitions
    chi_squared = ((counts - repetitions).square() / repetitions).sum()
    assert chi_squared < 51.2  # 24 degrees of freedom, p = 0.001


def test_images_of_one_batch_shift_each_in_its_own_way():
    image = torch.arange(1, 26, dtype=torch.float32).reshape(1, 1, 5, 5)
    shifted = random_shift(image.expand(64, 1, 5, 5), 2, RandomChoices(generator(), 64))
    assert len({which_shift(output, image[0], 2) for output in shifted}) > 10


def test_the_same_generator_state_gives_the_same_shifts():
    images = torch.rand(16, 1, 28, 28, generator=generator())
    first, again, other = (random_shift(images, 2, choices(images, seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_input_is_left_as_it_was():
    images = torch.rand(4, 1, 8, 8, generator=generator())
    before = images.clone()
    random_shift(images, 2, choices(images)).zero_()
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_no_shift_gives_the_images_themselves(dtype):
    images = torch.randint(0, 256, (4, 1, 8, 8), generator=generator(), dtype=torch.uint8).to(dtype)
    assert torch.equal(random_shift(images, 0, choices(images)), images)


def test_an_empty_batch_stays_empty():
    assert random_shift(torch.zeros(0, 1, 8, 8), 2, RandomChoices(generator(), 0)).shape == (0, 1, 8, 8)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "change",
    [
        lambda images, source: random_shift(images, 2, source),
        lambda images, source: random_crop(images, 24, source),
        random_flip,
        lambda images, source: random_warp((255 * images).byte(), WarpConfig(20.0, (0.8, 1.2)), source),
        lambda images, source: clamped_brightness(images, 0.25, source),
        lambda images, source: clamped_contrast(images, 0.2, 1.8, source),
        lambda images, source: adjust_brightness_contrast(
            images, random_brightness_contrast(0.25, (0.2, 1.8), source)
        ),
    ],
)
def test_augmentation_on_the_gpu_never_waits_for_it(change):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    images = torch.rand(16, 1, 28, 28, device="cuda")
    source = RandomChoices(torch.Generator("cuda").manual_seed(0), len(images))
    change(images, source)  # the first call may allocate and synchronize
    with never_waiting():
        change(images, source)


def all_crops(image: torch.Tensor, size: int) -> torch.Tensor:
    """Every square window of the image [C, H, W]: [places, C, size, size]."""
    _, height, width = image.shape
    rows, columns = range(height - size + 1), range(width - size + 1)
    return torch.stack([image[:, y : y + size, x : x + size] for y in rows for x in columns])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_crop_is_a_window_of_its_own_image(dtype):
    images = torch.randint(0, 256, (32, 3, 9, 11), generator=generator(), dtype=torch.uint8).to(dtype)
    crops = random_crop(images, 6, choices(images))
    assert crops.dtype == dtype
    for crop, image in zip(crops, images, strict=True):
        assert (all_crops(image, 6) == crop).flatten(1).all(dim=1).any()


def test_all_places_of_a_crop_occur_equally_often():
    repetitions = 400
    image = torch.arange(42, dtype=torch.float32).reshape(1, 1, 6, 7)
    images = image.expand(12 * repetitions, 1, 6, 7)
    crops = random_crop(images, 4, choices(images))
    counts = (crops[:, None] == all_crops(image[0], 4)).flatten(2).all(dim=2).sum(dim=0)
    assert counts.sum() == 12 * repetitions
    assert ((counts - repetitions).square() / repetitions).sum() < 31.3  # 11 degrees of freedom, p = 0.001


def test_the_center_crop_leaves_as_much_on_each_side():
    images = torch.arange(2 * 36 * 40).reshape(2, 1, 36, 40)
    assert torch.equal(center_crop(images, 24), images[:, :, 6:30, 8:32])
    assert torch.equal(center_crop(images, 35), images[:, :, :35, 2:37])


def test_a_crop_of_the_whole_image_is_the_image():
    images = torch.rand(4, 3, 8, 8, generator=generator())
    assert torch.equal(random_crop(images, 8, choices(images)), images)
    assert torch.equal(center_crop(images, 8), images)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_half_of_the_images_are_mirrored_left_to_right(dtype):
    images = torch.randint(0, 256, (1000, 2, 4, 5), generator=generator(), dtype=torch.uint8).to(dtype)
    flipped = random_flip(images, choices(images))
    is_same = (flipped == images).flatten(1).all(dim=1)
    is_mirrored = (flipped == images.flip(3)).flatten(1).all(dim=1)
    assert flipped.dtype == dtype
    assert (is_same ^ is_mirrored).all()
    assert 420 < int(is_mirrored.sum()) < 580


def middle_grays(images: int = 500) -> torch.Tensor:
    """Images that neither change of the tests below drives out of 0 to 1."""
    return 0.45 + 0.1 * torch.rand(images, 3, 6, 6, generator=generator())


def test_brightness_adds_one_amount_to_all_pixels_of_an_image():
    pixels = middle_grays()
    added = (clamped_brightness(pixels, 0.25, choices(pixels)) - pixels).flatten(1)
    assert torch.allclose(added, added[:, :1], atol=1e-6)
    assert added.abs().max() <= 0.25 + 1e-6


def test_brightness_covers_its_range_evenly():
    pixels = middle_grays()
    amounts = (clamped_brightness(pixels, 0.25, choices(pixels)) - pixels)[:, 0, 0, 0]
    counts = torch.histc(amounts, 5, -0.25, 0.25)
    assert ((counts - 100).square() / 100).sum() < 18.5  # 4 degrees of freedom, p = 0.001


def test_contrast_scales_the_distance_to_the_mean_of_each_channel():
    pixels = middle_grays()
    changed = clamped_contrast(pixels, 0.2, 1.8, choices(pixels))
    before, after = (p - p.mean(dim=(2, 3), keepdim=True) for p in (pixels, changed))
    factors = (before * after).flatten(1).sum(dim=1) / before.square().flatten(1).sum(dim=1)
    assert torch.allclose(after, factors[:, None, None, None] * before, atol=1e-6)
    assert torch.allclose(changed.mean(dim=(2, 3)), pixels.mean(dim=(2, 3)), atol=1e-6)
    counts = torch.histc(factors, 5, 0.2, 1.8)
    assert counts.sum() == len(pixels)
    assert ((counts - 100).square() / 100).sum() < 18.5  # 4 degrees of freedom, p = 0.001


def test_changed_pixels_stay_between_black_and_white():
    pixels = torch.rand(200, 1, 6, 6, generator=generator())
    brighter = clamped_brightness(pixels, 0.9, choices(pixels))
    sharper = clamped_contrast(pixels, 0.2, 5.0, choices(pixels))
    for changed in (brighter, sharper):
        assert changed.min() == 0
        assert changed.max() == 1


def test_no_change_of_light_leaves_the_pixels_as_they_are():
    pixels = torch.rand(4, 3, 6, 6, generator=generator())
    assert torch.equal(clamped_brightness(pixels, 0.0, choices(pixels)), pixels)
    assert torch.equal(clamped_contrast(pixels, 1.0, 1.0, choices(pixels)), pixels)


def test_light_that_a_network_changes_is_as_bright_and_contrasted_as_in_the_pixels_but_not_clamped():
    pixels = middle_grays()
    light = random_brightness_contrast(0.25, (0.2, 1.8), source := choices(pixels))
    source.generator.manual_seed(0)
    brighter = clamped_brightness(pixels, 0.25, source)
    expected = clamped_contrast(brighter, 0.2, 1.8, source)
    torch.testing.assert_close(adjust_brightness_contrast(pixels, light), expected)
    assert adjust_brightness_contrast(torch.eye(6)[None, None], torch.tensor([[0.5, 1.0]])).max() == 1.5


def test_choices_for_a_part_of_a_batch_are_those_of_the_whole():
    every, some = (RandomChoices(generator(), 8, part) for part in (slice(None), slice(2, 6)))
    for _ in range(2):
        assert torch.equal(some.uniform(), every.uniform()[2:6])
        assert torch.equal(some.integers(9, (2,), (3,)), every.integers(9, (2,), (3,))[:, 2:6])


@pytest.mark.parametrize("size", [16, 24, 31, 70])
def test_resizing_gives_what_pillow_gives_when_a_picture_is_served(size):
    images = torch.randint(0, 256, (3, 2, 48, 64), generator=generator(), dtype=torch.uint8)
    resized = resize(images, size)
    assert resized.dtype == torch.uint8
    for view, plane in zip(resized.flatten(0, 1), images.flatten(0, 1), strict=True):
        expected = Image.fromarray(plane.numpy()).resize((size, size), Image.Resampling.BILINEAR)
        assert np.array_equal(view.numpy(), np.asarray(expected))


def test_images_of_the_right_size_are_not_resized():
    images = torch.randint(0, 256, (2, 1, 8, 8), generator=generator(), dtype=torch.uint8)
    assert torch.equal(resize(images, 8), images)
