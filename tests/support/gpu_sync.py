"""A stretch of work in which nothing may wait for the GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def never_waiting() -> Iterator[None]:
    """Whatever waits for a GPU raises, within the context."""
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
