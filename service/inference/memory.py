"""Memory that is free but still counted as the process's own."""

import ctypes
import sys
from collections.abc import Sequence

from service.inference.engine import Engine

M_ARENA_MAX = -8  # of glibc's malloc.h


def release_memory(engines: Sequence[Engine]) -> None:
    """Return what batches, pictures and loading have left behind; takes a run of one image. Blocks.

    Args:
        engines: that are loaded.
    """
    for engine in engines[:1]:  # those on a CPU share what they free
        engine.release_memory()
    trim_heap()


def use_one_heap() -> None:
    """Let all threads allocate from one heap; call it before there are any.

    By default glibc gives threads heaps of their own, whose upper end it keeps however much of it is free.
    """
    if sys.platform == "linux":
        options = getattr(ctypes.CDLL(None), "mallopt", None)
        if options:
            options(M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return freed memory to the system, where the C library keeps it; takes milliseconds. Blocks.

    glibc gives back only what lies at the end of its heap. Loading a model frees more than its graphs weigh,
    and what stays loaded lies behind that: without asking, the process would keep it for good.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and needs none
        if trim:
            trim(0)
