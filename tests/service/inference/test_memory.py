"""Memory that was freed goes back to the system when asked to."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.inference.memory import trim_heap

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
    trim_heap()
    assert before - resident_bytes() > PIECE_BYTES * PIECES / 2
    assert all(piece.all() for piece in kept)


# A thread takes more than its heap gives back by itself, holds on to the first of it, and frees the rest.
THREADS_HEAP = """
import ctypes, threading
from service.inference.memory import trim_heap, use_one_heap
from tests.service.inference.test_memory import PIECE_BYTES, PIECES, resident_bytes
use_one_heap()
free, malloc = ctypes.CDLL(None).free, ctypes.CDLL(None).malloc
free.argtypes, malloc.restype = [ctypes.c_void_p], ctypes.c_void_p
ctypes.CDLL(None).mallopt(-1, 2**30)  # M_TRIM_THRESHOLD, as large as freed pictures make it
def work():
    pieces = [malloc(PIECE_BYTES) for _ in range(PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE_BYTES)
    for piece in pieces[1:]:
        free(piece)
thread = threading.Thread(target=work)
thread.start()
thread.join()
before = resident_bytes()
trim_heap()
print(before - resident_bytes())
"""


@needs_glibc
def test_what_a_thread_has_freed_is_given_back_to_the_end():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", THREADS_HEAP], env=environment, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) > PIECE_BYTES * PIECES / 2
