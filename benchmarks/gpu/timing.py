"""How long one run takes."""

import time
from collections.abc import Callable
from statistics import median

REPEATS = 5  # at least


def seconds_per_run(run: Callable[[], object], seconds: float) -> float:
    """Median time of one run, once it is warm."""
    for _ in range(3):  # compiles, chooses algorithms, records
        run()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < REPEATS or time.perf_counter() < until:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return median(times)
