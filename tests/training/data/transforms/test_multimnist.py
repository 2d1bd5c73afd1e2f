import itertools
from dataclasses import replace

import pytest
import torch

from tests.support.gpu_sync import never_waiting
from training.config import load_preset
from training.data.images import Images
from training.data.run_images import evaluation_batches, training_batches
from training.data.transforms.multimnist import PairMaker, Pairs

COUNT = 60
MAX_SHIFT_PIXELS = 4  # the paper's: 28x28 becomes 36x36


def digits(count: int = COUNT, size: int = 7, device: str = "cpu") -> Images:
    """Images without zeros, each with pixels of its own, in classes of unequal size."""
    source = torch.Generator().manual_seed(1)
    pixels = torch.randint(1, 256, (count, 1, size, size), generator=source, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 1, 4, 4, 4])[torch.arange(count) % 6]  # classes 2 and 3 are missing
    return Images(pixels, labels).to(torch.device(device))


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def together(batches) -> Pairs:
    parts = list(batches)
    return Pairs(*(torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])))


def assert_equal(found: Pairs, expected: Pairs) -> None:
    for name in vars(expected):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def where_it_is(alone: torch.Tensor, images: Images) -> tuple[int, int, int]:
    """Which of the images [C, H, W] stands where in a frame [C, h, w] that is empty around it."""
    ink = alone[0] > 0
    rows, columns = ink.any(dim=1).nonzero(), ink.any(dim=0).nonzero()
    top, left = int(rows[0]), int(columns[0])
    size = images.pixels.shape[2]
    window = alone[:, top : top + size, left : left + size]
    assert int(ink.sum()) == size * size
    [index] = (images.pixels == window).flatten(1).all(dim=1).nonzero().flatten().tolist()
    return index, top, left


def test_the_two_classes_always_differ():
    images = digits()
    for step in range(20):
        pairs = PairMaker(images, MAX_SHIFT_PIXELS).random(torch.arange(COUNT), generator(step))
        assert (pairs.labels[:, 0] != pairs.labels[:, 1]).all()


def test_every_image_of_another_class_is_a_partner_equally_often():
    images, repetitions = digits(12), 6000
    pairs = PairMaker(images, max_shift=0).random(torch.full((repetitions,), 3), generator())
    same = (pairs.objects[:, 1, None] == images.pixels).flatten(2).all(dim=2)  # [repetitions, 12]
    counts, others = same.sum(dim=0), images.labels != images.labels[3]
    assert counts[~others].sum() == 0
    expected = repetitions / int(others.sum())
    chi_squared = ((counts[others] - expected).square() / expected).sum()
    assert chi_squared < 20.5  # 5 degrees of freedom, p = 0.001


def test_both_objects_are_images_of_the_set_with_their_labels():
    images = digits()
    first = torch.arange(COUNT).flip(0)
    pairs = PairMaker(images, MAX_SHIFT_PIXELS).random(first, generator())
    for pair in range(COUNT):
        indices = [where_it_is(alone, images)[0] for alone in pairs.objects[pair]]
        assert indices[0] == first[pair]
        assert images.labels[indices].tolist() == pairs.labels[pair].tolist()


def test_pixels_are_the_sum_of_the_objects_clipped_at_255():
    pairs = PairMaker(digits(), MAX_SHIFT_PIXELS).random(torch.arange(COUNT), generator())
    assert pairs.pixels.dtype == torch.uint8
    expected = pairs.objects.int().sum(dim=1).clamp(max=255)
    assert (pairs.objects.int().sum(dim=1) > 255).any()
    assert torch.equal(pairs.pixels.int(), expected)


def test_each_object_moves_by_up_to_4_pixels_on_its_own():
    images = digits(300, 3)
    pairs = PairMaker(images, MAX_SHIFT_PIXELS).random(torch.arange(300), generator())
    assert pairs.pixels.shape == (300, 1, 11, 11)
    places = [[where_it_is(alone, images)[1:] for alone in objects] for objects in pairs.objects]
    shifts = torch.tensor(places) - 4  # [300, 2, 2]
    for axis in range(2):
        for one in range(2):
            assert set(shifts[:, one, axis].tolist()) == set(range(-4, 5))
    for a, b in itertools.combinations(shifts.flatten(1).double().T, 2):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.2


def test_28_by_28_digits_give_36_by_36_pairs():
    pairs = PairMaker(digits(12, 28), MAX_SHIFT_PIXELS).random(torch.arange(4), generator())
    assert pairs.pixels.shape == (4, 1, 36, 36)
    assert pairs.objects.shape == (4, 2, 1, 36, 36)


def test_boxes_of_20_pixels_overlap_by_about_three_quarters():
    images = digits(2, 28)
    box = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    box[:, :, 4:24, 4:24] = 100
    maker = PairMaker(replace(images, pixels=box), MAX_SHIFT_PIXELS)
    pairs = maker.random(torch.zeros(4000, dtype=torch.int64), generator())
    overlap = (pairs.pixels == 200).flatten(1).sum(dim=1) / 400
    # Two shifts uniform in -4..4 are 80 / 27 pixels apart on average. The paper calls it 80 %, which is what
    # is left of the box of a digit that has not moved.
    assert abs(overlap.mean() - (1 - 80 / 27 / 20) ** 2) < 0.01


def test_the_same_generator_state_gives_the_same_pairs():
    maker = PairMaker(digits(), MAX_SHIFT_PIXELS)
    first, again, other = (maker.random(torch.arange(COUNT), generator(seed)) for seed in (5, 5, 6))
    assert_equal(first, again)
    assert not torch.equal(first.pixels, other.pixels)


def test_the_digits_are_left_as_they_were():
    images = digits()
    before = images.pixels.clone()
    pairs = PairMaker(images, max_shift=0).random(torch.arange(COUNT), generator())
    pairs.objects.zero_()
    assert torch.equal(images.pixels, before)


def test_what_is_present_are_both_classes():
    pairs = PairMaker(digits(), MAX_SHIFT_PIXELS).random(torch.arange(COUNT), generator())
    targets = pairs.targets(10)
    assert targets.shape == (COUNT, 10)
    assert (targets.sum(dim=1) == 2).all()
    assert (targets.gather(1, pairs.labels) == 1).all()


def test_each_mask_keeps_the_class_of_its_object():
    masks = PairMaker(digits(), MAX_SHIFT_PIXELS).random(torch.arange(COUNT), generator()).masks(10)
    pairs = PairMaker(digits(), MAX_SHIFT_PIXELS).random(torch.arange(COUNT), generator())
    assert torch.equal(masks.argmax(dim=2), pairs.labels)
    assert (masks.sum(dim=2) == 1).all()


@pytest.mark.parametrize("batch", [1, 7, 60, 1000])
def test_the_fixed_set_does_not_depend_on_the_batch_size(batch):
    maker = PairMaker(digits(), MAX_SHIFT_PIXELS)
    assert_equal(together(maker.fixed(batch, partners=2)), together(maker.fixed(25, partners=2)))


def test_the_fixed_set_has_each_image_once_with_each_of_its_partners():
    images = digits()
    found = together(PairMaker(images, MAX_SHIFT_PIXELS).fixed(32, partners=3))
    assert len(found) == 3 * COUNT
    assert torch.equal(found.labels[:, 0], images.labels.repeat(3))
    assert (found.labels[:, 0] != found.labels[:, 1]).all()


def test_more_partners_leave_the_first_as_they_were():
    maker = PairMaker(digits(), MAX_SHIFT_PIXELS)
    few, many = together(maker.fixed(32)), together(maker.fixed(32, partners=4))
    assert torch.equal(many.pixels[:COUNT], few.pixels)
    assert not torch.equal(many.pixels[COUNT : 2 * COUNT], few.pixels)


def test_the_papers_set_of_a_thousand_partners_is_made_one_batch_at_a_time():
    batches = PairMaker(digits(), MAX_SHIFT_PIXELS).fixed(16, partners=1000)
    assert len(next(batches)) == 16  # nothing of the other 59,984 has been made


def test_images_of_one_class_only_are_refused():
    images = digits()
    with pytest.raises(ValueError, match="two classes; these 10 images have fewer"):
        PairMaker(images[images.labels == 0], MAX_SHIFT_PIXELS)


def ink(batches) -> set[bytes]:
    """Each digit that is shown, without the empty rows and columns around it."""
    shown = set()
    for batch in batches.fixed(50):
        for drawn in (batch.objects[:, :, 0] * 255).byte().flatten(0, 1):
            rows, columns = drawn.any(dim=1).nonzero(), drawn.any(dim=0).nonzero()
            trimmed = drawn[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            shown.add(trimmed.contiguous().numpy().tobytes())
    return shown


def test_no_digit_of_a_pair_is_in_two_of_training_validation_and_test(drawn_mnist_root):
    config = load_preset("multimnist")
    config = replace(config, data=replace(config.data, validation_images=50))
    train, validation = map(ink, training_batches(config, drawn_mnist_root))
    test = ink(evaluation_batches(config, drawn_mnist_root))
    assert min(len(train), len(validation), len(test)) >= 50
    assert not train & validation
    assert not train & test
    assert not validation & test


@pytest.mark.gpu
def test_pairs_are_made_on_the_gpu_without_waiting_for_it():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    maker, first, source = (
        PairMaker(digits(device="cuda"), MAX_SHIFT_PIXELS),
        torch.arange(COUNT, device="cuda"),
        generator(0, "cuda"),
    )
    maker.random(first, source)  # the first call may allocate and synchronize
    with never_waiting():
        pairs = maker.random(first, source)
        targets = pairs.targets(10)
    assert pairs.pixels.is_cuda
    assert targets.is_cuda


@pytest.mark.gpu
def test_the_fixed_set_is_the_same_on_the_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    on_gpu = together(PairMaker(digits(device="cuda"), MAX_SHIFT_PIXELS).fixed(32))
    found = Pairs(*(getattr(on_gpu, name).cpu() for name in vars(on_gpu)))
    assert_equal(found, together(PairMaker(digits(), MAX_SHIFT_PIXELS).fixed(32)))
