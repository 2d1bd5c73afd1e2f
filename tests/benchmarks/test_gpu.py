"""benchmarks.gpu.throughput runs to its end without a GPU when told to; its arithmetic holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.gpu.arithmetic_limit import Chip, arithmetic_limit, multiply_adds_per_image
from export.contract.manifest import newest_version
from tests.support.places import ROOT
from tests.support.tiny_bundle import make_model

DATA_SHEETS = [  # clock, TFLOP/s in float32; clock, TFLOP/s in float16 with sums in float32, dense
    (Chip("V100 SXM2", (7, 0), 80, 1530e6), 15.7, 1530e6, 125),
    (Chip("T4", (7, 5), 40, 1590e6), 8.1, 1590e6, 65),
    (Chip("A100 SXM", (8, 0), 108, 1410e6), 19.5, 1410e6, 312),
    (Chip("A10", (8, 6), 72, 1695e6), 31.2, 1695e6, 125),
    (Chip("L4", (8, 9), 58, 2040e6), 30.3, 2040e6, 121),
    (Chip("H100 SXM", (9, 0), 132, 1980e6), 67, 1830e6, 989),
    (Chip("B200", (10, 0), 148, 1965e6), 75, 1850e6, 2250),
]


@pytest.mark.parametrize(("chip", "float32", "clock_hz", "float16"), DATA_SHEETS, ids=lambda v: str(v)[:12])
def test_the_limit_is_the_peak_of_the_data_sheet(chip, float32, clock_hz, float16):
    limit = arithmetic_limit(chip, multiply_adds=1)
    assert limit.float32 * 2e-12 == pytest.approx(float32, rel=0.01)
    limit = arithmetic_limit(chip._replace(clock_hz=clock_hz), multiply_adds=1)
    assert limit.tensor_cores * 2e-12 == pytest.approx(float16, rel=0.01)


def test_a_chip_that_is_not_in_the_table_has_no_limit():
    assert arithmetic_limit(Chip("new", (99, 0), 1, 1e9), 1) is None


def test_the_papers_network_has_its_multiply_adds():
    model = onnx.load(newest_version(ROOT / "models" / "capsnet-mnist") / "encoder.onnx")
    conv1, primary = 81 * 256 * 20 * 20, 81 * 256 * 256 * 6 * 6
    votes, routing = 1152 * 8 * 160, 5 * 1152 * 160  # three weighted sums and two agreements
    assert multiply_adds_per_image(model) == conv1 + primary + votes + routing


def test_convolutions_in_groups_have_fewer_terms():
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2)
    model = make_model(
        [node], {"w": np.zeros((4, 3, 2, 2), np.float32)}, {"x": (None, 6, 5, 5)}, {"y": (None, 4, 4, 4)}
    )
    assert multiply_adds_per_image(model) == 4 * 4 * 4 * 3 * 2 * 2


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu.throughput", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)


def test_every_contender_of_a_cpu_has_the_references_probabilities(tmp_path):
    for only in ("eager", "ONNX Runtime", "as served"):  # without torch.compile, which takes a minute
        done = run("--device", "cpu", "--quick", "--only", only, "--json", tmp_path / "found.json")
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "found.json").read_text())
        assert len(found["rows"]) == 2
        for row in found["rows"]:
            assert set(row["images_per_second"]) == {"1", "2"}, row["notes"]
            assert row["difference"] < (1e-5 if "float32" in row["name"] else 1e-2)


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_is_missing():
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "nvidia-smi" in done.stderr
    assert "--device cpu" in done.stderr
