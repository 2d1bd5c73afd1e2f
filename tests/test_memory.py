"""Memory that was freed goes back to the system when asked to."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from service.memory import give_back_memory

PIECE_BYTES = 64 * 2**10  # small enough to lie in the heap
PIECES = 1000

needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc"
)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@needs_glibc
def test_what_lies_freed_between_what_is_used_is_given_back():
    pieces = [np.ones(PIECE_BYTES, np.uint8) for _ in range(PIECES)]
    kept = pieces[:: PIECES // 10]  # the heap cannot be cut short in front of these
    del pieces
    before = resident_bytes()
    give_back_memory()
    assert before - resident_bytes() > PIECE_BYTES * PIECES / 2
    assert all(piece.all() for piece in kept)
