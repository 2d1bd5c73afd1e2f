"""What calls of compiled functions need: tensors as arrays, and threads (they do not hold Python's lock)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def as_arrays(*tensors: Tensor) -> list[NDArray[Any]]:
    """The same memory, for compiled functions."""
    return [tensor.detach().numpy() for tensor in tensors]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Call `work` with each number from 0 to count - 1, as many at once as torch has threads."""
    threads = max(min(torch.get_num_threads(), count), 1)
    if threads == 1:
        for number in range(count):
            work(number)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(count)))


def in_parts(length: int, work: Callable[[tuple[int, int]], None]) -> None:
    """Call `work` with the first and last + 1 of each of torch's threads' equal part of a length, at once."""
    count = max(min(torch.get_num_threads(), length), 1)
    in_threads(count, lambda part: work((length * part // count, length * (part + 1) // count)))
