import numpy as np
import pytest

from training.data.synthetic.drawn_digits import FORMS, draw_digits, draw_hand, draw_strokes


def samples(count: int = 200, size: int = 28) -> np.ndarray:
    return draw_digits(np.arange(count) % 10, np.random.default_rng(3), size)


def test_digits_are_light_ink_on_black():
    digits = samples()
    assert digits.dtype == np.uint8
    assert digits.shape == (200, 28, 28)
    assert (digits.max(axis=(1, 2)) == 255).all()
    assert (np.median(digits, axis=(1, 2)) == 0).all()


def test_the_same_seed_draws_the_same_digits():
    np.testing.assert_array_equal(samples(20), samples(20))


def test_ink_fits_into_20_of_28_pixels():
    for digit in samples() > 0:
        rows, columns = np.flatnonzero(digit.any(axis=1)), np.flatnonzero(digit.any(axis=0))
        extent = max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1
        assert 19 <= extent <= 22  # the anti-aliased rim may reach into one pixel more on each side


@pytest.mark.parametrize("size", [28, 36])
def test_ink_is_centered_by_mass_where_mnists_is(size):
    digits = samples(size=size).astype(float)
    centers = np.arange(size) + 0.5
    mass = digits.sum(axis=(1, 2))
    for profile in (digits.sum(axis=1), digits.sum(axis=2)):
        offset = (profile * centers).sum(axis=1) / mass - 14.5 / 28 * size
        assert np.abs(offset).max() < 0.2


def test_every_form_of_a_digit_resembles_its_other_drawings_more_than_any_other_digit():
    labels = np.arange(300) % 10
    digits = draw_digits(labels, np.random.default_rng(0)).reshape(300, -1) / 255.0
    digits -= digits.mean(axis=1, keepdims=True)
    digits /= np.linalg.norm(digits, axis=1, keepdims=True)
    likeness = digits @ digits.T - 2 * np.eye(300)
    assert (labels[likeness.argmax(axis=1)] == labels).mean() > 0.97


def test_strokes_of_every_form_are_smooth_evenly_spaced_lines():
    rng = np.random.default_rng(0)
    for _ in range(20):
        for digit in FORMS:
            for stroke in draw_strokes(digit, draw_hand(rng), rng):
                steps = np.hypot(*np.diff(stroke, axis=0).T)
                assert steps.max() < 0.06
                assert steps.min() > 0
