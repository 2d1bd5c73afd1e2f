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

from benchmarks.gpu.arithmetic_limit import measured_limit, multiply_adds_per_image
from export.contract.manifest import newest_version
from tests.support.paths import ROOT
from tests.support.tiny_bundle import make_model


def test_the_votes_of_matrix_capsules_count():
    node = helper.make_node("Einsum", ["poses", "w"], ["votes"], equation="bpkirm,kijmc->bpjkirc")
    matrices = np.zeros((9, 8, 16, 4, 4), np.float32)
    shapes = {"poses": (None, 36, 9, 8, 4, 4)}, {"votes": (None, 36, 16, 9, 8, 4, 4)}
    assert multiply_adds_per_image(make_model([node], {"w": matrices}, *shapes)) == 36 * 72 * 16 * 4**3


def test_the_papers_network_has_its_multiply_adds():
    model = onnx.load(newest_version(ROOT / "models" / "capsnet-mnist") / "encoder.onnx")
    conv1, primary = 81 * 256 * 20 * 20, 81 * 256 * 256 * 6 * 6
    votes, routing = 1152 * 8 * 160, 5 * 1152 * 160  # three weighted sums and two agreements
    assert multiply_adds_per_image(model) == conv1 + primary + votes + routing


def test_the_limit_is_what_matrix_products_reach_and_less_for_a_larger_network(monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.arithmetic_limit.seconds_per_run", lambda run, seconds: run() or 0.5)
    small, large = (measured_limit("cpu", multiply_adds, 1.0) for multiply_adds in (1000, 2000))
    assert small.float32 == small.float16 == 512**3 / 0.5 / 1000 == 2 * large.float32


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


LONG = [pytest.param(only, marks=pytest.mark.long) for only in ("ONNX Runtime", "eager")]


@pytest.mark.parametrize("only", ["as served", *LONG])  # without torch.compile, which takes a minute
def test_a_contender_on_a_cpu_has_the_references_probabilities(tmp_path, only):
    kernels = tmp_path / "kernels.txt"
    files = ("--json", tmp_path / "found.json", "--kernels", kernels)
    done = run("--device", "cpu", "--quick", "--only", only, *files)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["rows"]) == 2
    assert min(found["limit_images_per_second"].values()) > 0
    assert all(f"{row['name']}, batch 2, 5 runs\n" in kernels.read_text() for row in found["rows"])
    for row in found["rows"]:
        assert set(row["images_per_second"]) == {"1", "2"}, row["notes"]
        assert row["difference"] < (1e-5 if "float32" in row["name"] else 1e-2)


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_is_missing():
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "nvidia-smi" in done.stderr
    assert "--device cpu" in done.stderr
