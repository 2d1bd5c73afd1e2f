"""What a benchmark ran on, and what processes hold there."""

import platform
import resource
import sys
from pathlib import Path


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


def memory_bytes(process: int | str = "self") -> dict[str, int]:
    """What a process holds, by the names of proc(5): VmRSS, of it RssAnon, VmHWM, the highest so far.

    Args:
        process: its number; by default this one.

    Raises:
        OSError: there is no such process, or no /proc, which only Linux has.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith("kB")}


def peak_bytes() -> int:
    """The highest resident memory of this process so far."""
    try:
        # Not getrusage: that begins with the memory of the process that started this one.
        return memory_bytes()["VmHWM"]
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
