"""Kernels in Triton run on CUDA devices alone."""

import pytest
import torch

from training.models.cuda.device import runs_triton


@pytest.mark.parametrize("device", ["cpu", "meta", "mps"])
def test_they_run_on_no_other_device(device):
    assert not runs_triton(torch.device(device))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_they_run_where_torch_brings_triton():
    pytest.importorskip("triton", reason="Triton is not installed; `pip install triton==3.9.0` adds it")
    assert runs_triton(torch.device("cuda")) == (torch.cuda.get_device_capability() >= (7, 0))
