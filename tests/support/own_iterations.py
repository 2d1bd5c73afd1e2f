"""Publishing without what test_parity.py is for: every other number of iterations is one more export."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from export import parity


@contextmanager
def compared_at_own_iterations() -> Iterator[None]:
    """What is published meanwhile is compared with PyTorch at its own number of routing iterations alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(parity.ROUTING_ITERATIONS, "capsnet", ())
        yield
