import pytest

from export.optimize.plan import PLAIN, Choice
from service.inference.session_pool import SessionPool, open_by_size, pool_of_one

ALWAYS = Choice(variants=("toom_cook_1d",))
TO_FOUR = Choice(variants=("toom_cook_1d", "toom_cook_2d"), borders=(4,))
TO_ONE = Choice(variants=("plain", "toom_cook_2d"), borders=(1,))
THREE = Choice(variants=("plain", "toom_cook_1d", "toom_cook_2d"), borders=(1, 4))


def pool(alone: Choice, beside: Choice, waited: float = 0.0) -> SessionPool:
    """With words instead of sessions."""
    plan = PLAIN.model_copy(update={"exclusive": alone, "shared": beside, "waited": waited})
    return SessionPool(
        open_by_size(alone, lambda variant: f"alone, {variant}"),
        open_by_size(beside, lambda variant: f"beside, {variant}"),
        plan,
    )


@pytest.mark.parametrize(
    ("images", "alone", "expected"),
    [
        (1, True, "alone, plain"),
        (2, True, "alone, toom_cook_1d"),
        (4, True, "alone, toom_cook_1d"),
        (5, True, "alone, toom_cook_2d"),
        (1, False, "beside, plain"),
        (2, False, "beside, toom_cook_2d"),
    ],
)
def test_a_batch_gets_the_session_for_its_size_and_its_cores(images, alone, expected):
    assert pool(THREE, TO_ONE).session(images, exclusive=alone) == expected


def test_one_session_may_run_everything():
    one = pool_of_one("only")
    assert {one.session(images, exclusive=alone) for images in (1, 64) for alone in (True, False)} == {"only"}
    assert one.all == ["only"]


def test_a_form_for_two_ranges_is_opened_once():
    opened = []
    twice = Choice(variants=("plain", "toom_cook_1d", "plain"), borders=(1, 4))
    by_size = open_by_size(twice, lambda variant: opened.append(variant) or variant)
    assert opened == ["plain", "toom_cook_1d"]
    assert by_size.session(1) is by_size.session(16)


@pytest.mark.parametrize(
    ("alone", "beside", "expected"),
    [
        (PLAIN.exclusive, PLAIN.shared, "plain"),
        (ALWAYS, ALWAYS, "toom_cook_1d"),
        (TO_FOUR, TO_FOUR, "toom_cook_1d to 4 images, then toom_cook_2d"),
        (
            TO_FOUR,
            TO_ONE,
            "toom_cook_1d to 4 images, then toom_cook_2d; "
            "beside other batches plain to 1 image, then toom_cook_2d",
        ),
    ],
)
def test_it_says_which_graph_runs_when(alone, beside, expected):
    assert pool(alone, beside).describe() == expected


def test_it_says_that_the_graphs_were_chosen_under_load():
    assert pool(ALWAYS, ALWAYS, waited=0.5).describe() == "toom_cook_1d; measured under load"


def test_gathering_pays_where_large_batches_have_a_graph_of_their_own():
    assert pool(ALWAYS, TO_FOUR).large_batch_above == 4
    assert pool(ALWAYS, THREE).large_batch_above == 4
    assert pool(TO_FOUR, ALWAYS).large_batch_above is None


def test_gathering_pays_however_a_noisy_measurement_parts_the_large_batches():
    noisy = Choice(variants=("toom_cook_1d", "plain", "toom_cook_2d", "toom_cook_1d"), borders=(1, 2, 8))
    assert pool(ALWAYS, noisy).large_batch_above == 2
