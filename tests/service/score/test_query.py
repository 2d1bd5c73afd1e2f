"""Which model and version a run of capsnet-score uses, and what it says where there is none."""

import pytest

from service.models.traffic import Traffic
from service.score.query import ScoreError, only_model, usable_versions


def test_that_there_are_no_models_is_not_called_several():
    with pytest.raises(ScoreError, match=r"^there are no models$"):
        only_model([])
    with pytest.raises(ScoreError, match=r"^there are several models: .* from a, b$"):
        only_model(["a", "b"])


def test_a_pinned_version_that_is_missing_is_named_also_beside_a_canary():
    rule = Traffic(pinned=3, canary=4, share=0.2)
    with pytest.raises(ScoreError, match=r"^m is pinned to version 3, which is not there; available: 4, 5$"):
        usable_versions("m", None, [4, 5], rule)
