"""What a process does with memory that it does not need at the moment."""

import ctypes

# Parameters of glibc's mallopt, from malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Let this process keep the memory of large arrays for the next ones, where the C library is glibc.

    It would hand each back to the system, which fills memory with zeros before it gives it out again: on a
    CPU, a tenth of a training step and more. What a process once needed it keeps until it ends, and because
    free memory is in pieces, it needs more, small networks by the largest part.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    mallopt(MMAP_MAX, 0)  # large arrays lie on the heap, too
    mallopt(TRIM_THRESHOLD, -1)  # never
    mallopt(TOP_PAD, 1 << 28)  # grow the heap by 256 MiB
