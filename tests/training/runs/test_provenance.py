import pytest
import torch

from training.config import CapsNetConfig, MatrixCapsNetConfig
from training.runs import provenance


@pytest.mark.parametrize("has", [True, False])
def test_the_hardware_says_what_convolutions_are_trained_in(has, monkeypatch):
    monkeypatch.setattr(provenance, "has_bfloat16_instructions", lambda: has)
    named = provenance.hardware(torch.device("cpu"), CapsNetConfig())
    assert f"{torch.get_num_threads()} threads, torch {torch.__version__}" in named
    assert ("convolutions in bfloat16" in named) == has


def test_of_matrix_capsules_no_convolution_is_trained_in_bfloat16_on_a_cpu(monkeypatch):
    monkeypatch.setattr(provenance, "has_bfloat16_instructions", lambda: True)
    assert "bfloat16" not in provenance.hardware(torch.device("cpu"), MatrixCapsNetConfig("matrix-capsnet"))
