"""How many processors this process may use."""

import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(cpu_max: Path = CPU_MAX) -> int:
    """CPUs this process may use: those it may run on, or fewer where its control group has a quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
    except (OSError, ValueError):  # no control group of version 2
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, int(quota) // int(period)))
