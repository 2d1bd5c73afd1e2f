import pytest

from export.optimize.plan import PLAIN, Choice
from service.encoders import BySize, Encoders, one_for_all, open_by_size

ALWAYS = Choice(small="one_axis", small_up_to=16, large="one_axis")
TO_FOUR = Choice(small="one_axis", small_up_to=4, large="both_axes")
TO_ONE = Choice(small="plain", small_up_to=1, large="both_axes")


def encoders(alone: Choice, beside: Choice) -> Encoders:
    """With words instead of sessions."""
    plan = PLAIN.model_copy(update={"alone": alone, "beside": beside})
    return Encoders(
        BySize("alone, small", alone.small_up_to, "alone, large"),
        BySize("beside, small", beside.small_up_to, "beside, large"),
        plan,
    )


@pytest.mark.parametrize(
    ("images", "alone", "expected"),
    [
        (1, True, "alone, small"),
        (4, True, "alone, small"),
        (5, True, "alone, large"),
        (1, False, "beside, small"),
        (2, False, "beside, large"),
    ],
)
def test_a_batch_gets_the_session_for_its_size_and_its_cores(images, alone, expected):
    assert encoders(TO_FOUR, TO_ONE).session(images, alone=alone) == expected


def test_one_session_may_run_everything():
    one = one_for_all("only")
    assert {one.session(images, alone=alone) for images in (1, 64) for alone in (True, False)} == {"only"}
    assert one.all == ["only"]


def test_a_form_for_all_sizes_is_opened_once():
    opened = []
    by_size = open_by_size(ALWAYS, lambda form: opened.append(form) or form)
    assert opened == ["one_axis"]
    assert by_size.small is by_size.large


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
    assert encoders(alone, beside).describe() == expected


def test_gathering_pays_where_large_batches_have_a_graph_of_their_own():
    assert encoders(ALWAYS, TO_FOUR).pays_above == 4
    assert encoders(TO_FOUR, ALWAYS).pays_above is None
