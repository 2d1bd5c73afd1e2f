"""Triton for tests: its kernels run compiled where there is a CUDA device, and elsewhere in its interpreter.

To be imported before any module that has kernels; without Triton it skips the test file that imports it. It
comes with torch for CUDA; elsewhere `pip install triton==3.9.0` adds it, 286 MB to download and 1 GB on disk.
"""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MARKS = [pytest.mark.gpu] if DEVICE == "cuda" else []

pytest.importorskip("triton", reason="Triton is not installed; `pip install triton==3.9.0` adds it")
