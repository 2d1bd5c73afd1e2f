"""What a benchmark ran on, and what processes hold there."""

import os
import platform
import resource
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
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


def cpu_seconds(process: int) -> float:
    """What a process has used so far, in user and system mode.

    Raises:
        OSError: as `memory_bytes`.
    """
    user, system = stat(process)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def stat(process: int) -> list[str]:
    """The fields of /proc/PID/stat behind the process's name; proc(5) counts them from 3."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def installed(*packages: str) -> dict[str, str]:
    """The versions of those of the packages that are installed."""
    found = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def peak_bytes() -> int:
    """The highest resident memory of this process so far."""
    try:
        # Not getrusage: that begins with the memory of the process that started this one.
        return memory_bytes()["VmHWM"]
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
