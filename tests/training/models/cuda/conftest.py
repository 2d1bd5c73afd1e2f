"""Without a CUDA device kernels run in Triton's interpreter; its own library reads this when imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
