"""What runs in Triton's interpreter also compiles, for chips that are not here."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("triton", reason="Triton is not installed; `pip install triton==3.9.0` adds it")


@pytest.mark.timeout(1200)
def test_every_kernel_compiles_and_where_a_program_works_on_one_child_threads_exchange_nothing(tmp_path):
    """For the compute capabilities 8.0, 9.0 and 10.0."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.compile_kernels", "80", "90", "100"],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for line in ran.stdout.splitlines():
        exchanges = dict(json.loads(line))
        assert len(exchanges) == 8
        assert exchanges["e_step"] == exchanges["gradients_of_child"] == 0
    assert len(ran.stdout.splitlines()) == 3
