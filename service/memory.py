"""Memory that is free but still counted as the process's own."""

import ctypes
import sys


def give_back_memory() -> None:
    """Return freed memory to the system, where the C library keeps it; takes milliseconds. Blocks.

    glibc gives back only what lies at the end of its heap. Loading a model frees more than its graphs weigh,
    and what stays loaded lies behind that: without asking, the process would keep it for good.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none, and needs none
        if trim:
            trim(0)
