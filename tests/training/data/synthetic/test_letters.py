import numpy as np

from training.data.synthetic.letters import LETTERS, draw_letters


def test_the_same_state_gives_the_same_letters_each_of_which_is_another():
    first, second = (draw_letters(2 * len(LETTERS), np.random.default_rng(3)) for _ in range(2))
    assert first.shape == (2 * len(LETTERS), 28, 28)
    assert first.dtype == np.uint8
    assert np.array_equal(first, second)
    assert len(np.unique(first.reshape(len(first), -1), axis=0)) == len(first)


def test_letters_have_the_size_and_place_of_digits():
    for size in (28, 40):
        for letter in draw_letters(len(LETTERS), np.random.default_rng(0), size):
            rows, columns = np.nonzero(letter)
            assert abs(max(np.ptp(rows), np.ptp(columns)) + 1 - size * 20 / 28) < 3
            across, down = (letter.sum(axis=axis) @ (np.arange(size) + 0.5) / letter.sum() for axis in (0, 1))
            assert abs(across - size * 14.5 / 28) < 1
            assert abs(down - size * 14.5 / 28) < 1


def test_no_letter_looks_like_a_digit():
    assert not set(LETTERS) & set("BDIlLOoQSsZzbgiqyY")
