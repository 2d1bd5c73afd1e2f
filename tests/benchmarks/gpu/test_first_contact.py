"""benchmarks/gpu/first_contact.sh on the CPU."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu" / "first_contact.sh"


def test_a_part_that_it_has_not_is_refused_with_those_it_has(tmp_path):
    ran = subprocess.run(
        [SCRIPT, "answers", "ls"], env={**os.environ, "OUT": str(tmp_path)}, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert (
        "there is no part ls; there are tests, agreement, answers, speed, routing and compile" in ran.stderr
    )


@pytest.mark.parametrize("failing", ["ONNX Runtime", "torch eager", None])
def test_speed_fails_if_any_contender_does(tmp_path, failing):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *"--only {failing} "*) exit 1 ;; esac\n')
    python.chmod(0o755)
    places = {"PYTHON": str(python), "OUT": str(tmp_path), "DEVICE": "cpu"}
    ran = subprocess.run([SCRIPT, "speed"], env={**os.environ, **places}, capture_output=True, text=True)
    assert ran.returncode == (1 if failing else 0), ran.stdout


@pytest.mark.long
def test_every_model_of_its_service_answers_and_the_service_stops(tmp_path):
    places = {"PYTHON": sys.executable, "OUT": str(tmp_path), "DEVICE": "cpu", "CAPSNET_OPTIMIZE": "false"}
    ran = subprocess.run(
        [SCRIPT, "answers"], env={**os.environ, **places}, capture_output=True, text=True, timeout=300
    )
    log = (tmp_path / "first_contact.log").read_text()
    assert ran.returncode == 0, log
    assert ran.stdout == log
    for model in ("capsnet-digits", "capsnet-mnist", "capsnet-multimnist", "matrix-capsnet-toys"):
        assert f"\n{model}: median of 50 requests " in log
    assert log.count('"label":"7","labels":["7"]') == 2
    assert log.count("/reconstruct 200 {") == 4
    assert log.endswith("-- answers ended with status 0\n")
