"""benchmarks.gpu.routing compares kernels with array operations, in an interpreter where told to."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks.gpu.routing", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)


def test_without_a_gpu_it_says_what_to_do():
    ran = run()
    assert ran.returncode == 2
    assert "--device cpu" in ran.stderr


@pytest.mark.timeout(900)
def test_a_row_has_the_differences_of_a_layer(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed; `pip install triton==3.9.0` adds it")
    ran = run("--device", "cpu", "--only", "agreement", "--json", tmp_path / "rows.jsonl")
    assert ran.returncode == 0, ran.stderr
    [row] = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert row["layer"] == "by agreement, class capsules"
    assert row["layer"] in ran.stdout
    assert 0 <= row["difference"] < 1e-5
    assert 0 < row["gradient_difference"] < 1e-4
    assert row["images_per_second"] == [None, None]
