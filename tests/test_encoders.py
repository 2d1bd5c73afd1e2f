import pytest

from export.optimize.plan import PLAIN
from service.encoders import Encoders, one_for_all


def encoders(**forms) -> Encoders:
    """With names instead of sessions."""
    plan = PLAIN.model_copy(update={"small_up_to": 4, **forms})
    return Encoders("alone", 4, "small", 4, "large", plan)


@pytest.mark.parametrize(
    ("images", "alone", "expected"),
    [(1, True, "alone"), (4, True, "alone"), (4, False, "small"), (5, True, "large"), (5, False, "large")],
)
def test_a_batch_gets_the_session_for_its_size_and_its_cores(images, alone, expected):
    assert encoders().session(images, alone=alone) == expected


def test_one_session_may_run_everything():
    one = one_for_all("only", 64)
    assert {one.session(images, alone=alone) for images in (1, 64) for alone in (True, False)} == {"only"}
    assert one.all == ["only"]


@pytest.mark.parametrize(
    ("forms", "expected"),
    [
        ({}, "plain"),
        ({"alone": "one_axis", "small": "one_axis", "large": "one_axis"}, "one_axis"),
        (
            {"alone": "one_axis", "small": "one_axis", "large": "both_axes"},
            "one_axis to 4 images, then both_axes",
        ),
        ({"large": "both_axes"}, "plain to 4 images, then both_axes"),
        (
            {"alone": "one_axis", "large": "both_axes"},
            "one_axis alone, plain beside others to 4 images, then both_axes",
        ),
    ],
)
def test_it_says_which_graph_runs_when(forms, expected):
    assert encoders(**forms).describe() == expected
