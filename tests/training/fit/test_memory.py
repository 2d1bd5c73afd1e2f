import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from training.fit.memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(1 << 26, np.uint8).fill(1)  # 64 MiB, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fill()
print(fill())
"""


def page_faults(what):
    """Of filling an array, in a process that has freed one of the same size before."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, what], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's")
def test_a_freed_array_is_used_again_and_not_asked_for_anew():
    assert page_faults("keep") < page_faults("give back") / 2
