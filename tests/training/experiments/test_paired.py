from itertools import product

import numpy as np
import pytest

from training.experiments.paired import compare


def test_the_same_errors_differ_by_chance_alone():
    found = compare([[1, 2, 3], [4]], [[1, 2, 3], [4]])
    assert (found.before, found.after, found.p, found.fewer_percent) == (4, 4, 1.0, 0.0)


def test_many_errors_that_one_way_alone_makes_are_no_chance():
    found = compare([range(100)], [range(90, 110)])
    assert (found.before, found.after) == (100, 20)
    assert found.fewer_percent == pytest.approx(80)
    assert found.p < 1e-4


def test_p_is_that_of_a_coin_if_each_image_differs_once():
    found = compare([[*range(8)]], [[100, 101]])
    assert found.p == pytest.approx(2 * (1 + 10 + 45) / 2**10)


def test_p_counts_every_exchange_of_images_that_differ_by_more_than_one():
    before, after = [[1, 2, 3], [1, 2], [1]], [[4, 5], [4], []]  # differences of 3, 2, 1, -2 and -1
    signs = np.array(list(product([-1, 1], repeat=5)))
    as_large = np.abs(signs @ [3, 2, 1, 2, 1]) >= 3
    assert compare(before, after).p == pytest.approx(as_large.mean())


def test_seeds_of_an_image_are_exchanged_together():
    images = [[1, 2, 3]]
    alone, repeated = compare(images, [[]]), compare(images * 20, [[]] * 20)
    assert repeated.before == 60
    assert repeated.p == alone.p, "twenty seeds of three images are three images"


def test_errors_that_come_are_negative_percent():
    assert compare([[1, 2]], [[1, 2, 3]]).fewer_percent == -50
    assert compare([[]], [[1]]).fewer_percent is None


def test_ways_with_other_numbers_of_seeds_cannot_be_paired():
    with pytest.raises(ValueError, match="2 seeds cannot be paired with 1"):
        compare([[1], [2]], [[1]])
