"""Returning free memory to the system."""

import ctypes
import sys

from service.inference.arena import shrink_arena

M_ARENA_MAX = -8  # of glibc's malloc.h


def release_memory() -> None:
    """Return the memory that batches, pictures and loading have used. Blocks for milliseconds."""
    shrink_arena()
    trim_heap()


def use_one_heap() -> None:
    """Let all threads allocate from one heap; call it before there are any.

    By default glibc gives threads their own heaps, whose free upper end it never returns.
    """
    if sys.platform == "linux":
        options = getattr(ctypes.CDLL(None), "mallopt", None)
        if options:
            options(M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return freed memory that the C library keeps; takes milliseconds. Blocks.

    By itself glibc returns only memory at the end of its heap. Loading a model frees more memory than its
    graphs take, and the loaded graphs lie behind it: without this the process would keep it for good.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and needs none
        if trim:
            trim(0)
