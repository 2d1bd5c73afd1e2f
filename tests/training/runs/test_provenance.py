import pytest
import torch

from training.runs import provenance


@pytest.mark.parametrize("has", [True, False])
def test_the_hardware_says_what_convolutions_are_trained_in(has, monkeypatch):
    monkeypatch.setattr(provenance, "has_bfloat16_instructions", lambda: has)
    named = provenance.hardware(torch.device("cpu"))
    assert f"{torch.get_num_threads()} threads, torch {torch.__version__}" in named
    assert ("convolutions in bfloat16" in named) == has
