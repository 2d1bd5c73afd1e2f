import pytest
import torch
from torch.nn import functional as F

from training.data.augment import blank_some, random_shift


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
    shifted = random_shift(images, max_shift, generator())
    assert shifted.dtype == dtype
    assert shifted.shape == images.shape
    for output, image in zip(shifted, images, strict=True):
        which_shift(output, image, max_shift)


def test_all_shifts_occur_equally_often():
    max_shift, repetitions = 2, 400
    image = torch.arange(1, 26, dtype=torch.float32).reshape(1, 1, 5, 5)
    shifted = random_shift(image.expand(25 * repetitions, 1, 5, 5), max_shift, generator())
    windows = all_shifts(image[0], max_shift)
    counts = (shifted[:, None] == windows).flatten(2).all(dim=2).sum(dim=0)
    assert counts.sum() == 25 * repetitions
    chi_squared = ((counts - repetitions).square() / repetitions).sum()
    assert chi_squared < 51.2  # 24 degrees of freedom, p = 0.001


def test_images_of_one_batch_shift_each_in_its_own_way():
    image = torch.arange(1, 26, dtype=torch.float32).reshape(1, 1, 5, 5)
    shifted = random_shift(image.expand(64, 1, 5, 5), 2, generator())
    assert len({which_shift(output, image[0], 2) for output in shifted}) > 10


def test_the_same_generator_state_gives_the_same_shifts():
    images = torch.rand(16, 1, 28, 28, generator=generator())
    first, again, other = (random_shift(images, 2, generator(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_input_is_left_as_it_was():
    images = torch.rand(4, 1, 8, 8, generator=generator())
    before = images.clone()
    random_shift(images, 2, generator()).zero_()
    assert torch.equal(images, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_no_shift_gives_the_images_themselves(dtype):
    images = torch.randint(0, 256, (4, 1, 8, 8), generator=generator(), dtype=torch.uint8).to(dtype)
    assert torch.equal(random_shift(images, 0, generator()), images)


def test_an_empty_batch_stays_empty():
    assert random_shift(torch.zeros(0, 1, 8, 8), 2, generator()).shape == (0, 1, 8, 8)


def test_a_negative_shift_is_refused():
    with pytest.raises(ValueError, match="at least 0 pixels, got -1"):
        random_shift(torch.zeros(1, 1, 8, 8), -1, generator())


@pytest.mark.gpu
def test_shifting_on_the_gpu_never_waits_for_it():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    images = torch.rand(16, 1, 28, 28, device="cuda")
    source = torch.Generator("cuda").manual_seed(0)
    random_shift(images, 2, source)  # the first call may allocate and synchronise
    torch.cuda.set_sync_debug_mode("error")
    try:
        random_shift(images, 2, source)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_blank_images_are_empty_and_hold_no_class():
    pixels, present = torch.rand(1000, 1, 4, 4) + 0.1, torch.eye(10).repeat(100, 1)
    found, left = blank_some(pixels, present, 0.25, torch.Generator().manual_seed(0))
    blank = left.sum(dim=1) == 0
    assert 200 < int(blank.sum()) < 300
    assert (found[blank] == 0).all()
    assert torch.equal(found[~blank], pixels[~blank])
    assert torch.equal(left[~blank], present[~blank])
