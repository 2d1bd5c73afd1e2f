"""How long one run takes, and which kernels take the time."""

import time
from collections.abc import Callable
from statistics import median

REPEATS = 5  # at least
PROFILED_RUNS = 5
KERNELS = 25  # in a table


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


def kernels(run: Callable[[], object], device: str) -> str:
    """A table of the kernels of a few runs, of whichever library; on a CPU of torch's operators."""
    from torch.profiler import ProfilerActivity, profile

    on_cuda = device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU]) as profiled:
        for _ in range(PROFILED_RUNS):
            run()
    order = "self_cuda_time_total" if on_cuda else "self_cpu_time_total"
    averages = profiled.key_averages()
    table: str = averages.table(sort_by=order, row_limit=KERNELS, max_name_column_width=90)
    return table
