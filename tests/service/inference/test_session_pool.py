import pytest

from export.optimize.plan import PLAIN, Choice
from service.inference.session_pool import SessionPool, open_by_size, pool_of_one

ALWAYS = Choice(forms=("one_axis",))
TO_FOUR = Choice(forms=("one_axis", "both_axes"), borders=(4,))
TO_ONE = Choice(forms=("plain", "both_axes"), borders=(1,))
THREE = Choice(forms=("plain", "one_axis", "both_axes"), borders=(1, 4))


def pool(alone: Choice, beside: Choice, waited: float = 0.0) -> SessionPool:
    """With words instead of sessions."""
    plan = PLAIN.model_copy(update={"alone": alone, "beside": beside, "waited": waited})
    return SessionPool(
        open_by_size(alone, lambda form: f"alone, {form}"),
        open_by_size(beside, lambda form: f"beside, {form}"),
        plan,
    )


@pytest.mark.parametrize(
    ("images", "alone", "expected"),
    [
        (1, True, "alone, plain"),
        (2, True, "alone, one_axis"),
        (4, True, "alone, one_axis"),
        (5, True, "alone, both_axes"),
        (1, False, "beside, plain"),
        (2, False, "beside, both_axes"),
    ],
)
def test_a_batch_gets_the_session_for_its_size_and_its_cores(images, alone, expected):
    assert pool(THREE, TO_ONE).session(images, alone=alone) == expected


def test_one_session_may_run_everything():
    one = pool_of_one("only")
    assert {one.session(images, alone=alone) for images in (1, 64) for alone in (True, False)} == {"only"}
    assert one.all == ["only"]


def test_a_form_for_two_ranges_is_opened_once():
    opened = []
    twice = Choice(forms=("plain", "one_axis", "plain"), borders=(1, 4))
    by_size = open_by_size(twice, lambda form: opened.append(form) or form)
    assert opened == ["plain", "one_axis"]
    assert by_size.session(1) is by_size.session(16)


@pytest.mark.parametrize(
    ("alone", "beside", "expected"),
    [
        (PLAIN.alone, PLAIN.beside, "plain"),
        (ALWAYS, ALWAYS, "one_axis"),
        (TO_FOUR, TO_FOUR, "one_axis to 4 images, then both_axes"),
        (
            TO_FOUR,
            TO_ONE,
            "one_axis to 4 images, then both_axes; beside other batches plain to 1 image, then both_axes",
        ),
    ],
)
def test_it_says_which_graph_runs_when(alone, beside, expected):
    assert pool(alone, beside).describe() == expected


def test_it_says_that_the_graphs_were_chosen_under_load():
    assert pool(ALWAYS, ALWAYS, waited=0.5).describe() == "one_axis; measured under load"


def test_gathering_pays_where_large_batches_have_a_graph_of_their_own():
    assert pool(ALWAYS, TO_FOUR).large_batch_above == 4
    assert pool(ALWAYS, THREE).large_batch_above == 4
    assert pool(TO_FOUR, ALWAYS).large_batch_above is None


def test_gathering_pays_however_a_noisy_measurement_parts_the_large_batches():
    noisy = Choice(forms=("one_axis", "plain", "both_axes", "one_axis"), borders=(1, 2, 8))
    assert pool(ALWAYS, noisy).large_batch_above == 2
