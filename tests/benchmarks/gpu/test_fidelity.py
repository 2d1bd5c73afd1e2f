"""benchmarks/gpu/fidelity.sh on the CPU: two slices of the `drawn` preset, and the way back to a run."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.paths import ROOT
from training.cli import main
from training.runs import checkpoint

PART_BYTES = 500_000


def shell(command, cwd=ROOT, **environment):
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


def fidelity(folder, arguments, **environment):
    places = {"RUN": str(folder / "drawn-1"), "OUT": str(folder / "out"), "PART_BYTES": str(PART_BYTES)}
    return shell(f"{ROOT}/benchmarks/gpu/fidelity.sh {arguments}", cwd=folder, **places, **environment)


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """What two slices have printed, and the folder that they worked in."""
    folder = tmp_path_factory.mktemp("fidelity")
    ran = [fidelity(folder, "drawn --epochs 1 --seed 1", MINUTES=minutes) for minutes in ("0.01", "")]
    assert [each.returncode for each in ran] == [0, 0], ran[-1].stderr
    return folder, [each.stdout for each in ran]


@pytest.fixture(scope="module")
def joined(slices):
    """The run that the documented commands put together."""
    folder, _ = slices
    checked = shell("cd out && sha256sum --check drawn-1.sha256", cwd=folder)
    assert checked.returncode == 0, checked.stderr
    join = "mkdir -p joined && cat out/drawn-1.part-* | tar --extract --directory joined"
    assert shell(join, cwd=folder).returncode == 0
    return folder / "joined"


@pytest.mark.long
def test_the_second_slice_goes_on_where_the_first_one_stopped(slices):
    folder, (first, second) = slices
    assert "stopped at step" in first
    assert "validation error" in second
    assert checkpoint.read_progress(checkpoint.newest_checkpoint(folder / "drawn-1")).resumed
    assert checkpoint.read_config(folder / "drawn-1").seed == 1


@pytest.mark.long
def test_a_slice_that_ends_with_an_error_leaves_what_it_has_reached(tmp_path):
    failing = tmp_path / "python"
    failing.write_text(f'#!/bin/bash\n{sys.executable} "$@"\nif [ "$2" = training.cli ]; then exit 2; fi\n')
    failing.chmod(0o755)
    ran = fidelity(tmp_path, "drawn --epochs 1", MINUTES="0.01", PYTHON=str(failing))
    assert ran.returncode == 2
    assert (tmp_path / "out" / "drawn-1.sha256").is_file()


@pytest.mark.long
def test_the_first_slice_has_left_a_network_already(slices):
    assert "is in" in slices[1][0]


@pytest.mark.long
def test_what_is_left_are_small_files_with_checksums(slices):
    *parts, checksums = sorted((slices[0] / "out").iterdir())
    assert checksums.name == "drawn-1.sha256"
    assert len(parts) > 1
    assert all(part.name.startswith("drawn-1.part-") and part.stat().st_size <= PART_BYTES for part in parts)


@pytest.mark.long
def test_the_joined_run_has_the_test_error_of_the_one_that_was_trained(slices, joined):
    results = []
    for run in (slices[0] / "drawn-1", joined):
        with pytest.raises(SystemExit, match="0"):
            main(["evaluate", str(run), "--device", "cpu"])
        results.append(json.loads((run / "result.json").read_text()))
    trained, measured = results
    assert measured == trained


@pytest.mark.long
def test_the_joined_run_is_one_to_start_another_from(joined):
    assert checkpoint.newest_checkpoint(joined) == checkpoint.best_checkpoint(joined)


@pytest.mark.long
def test_a_run_that_was_begun_otherwise_is_not_gone_on_with(slices):
    refused = fidelity(slices[0], "drawn --epochs 1 --seed 2")
    assert refused.returncode == 2
    assert "was begun as 'drawn --epochs 1 --seed 1', not as 'drawn --epochs 1 --seed 2'" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_slice_that_is_ended_from_outside_leaves_what_it_has_reached(tmp_path, number):
    """By `timeout`, which sends the signal to all of its processes."""
    places = {"RUN": str(tmp_path / "drawn-1"), "OUT": str(tmp_path / "out"), "PYTHON": sys.executable}
    process = subprocess.Popen(
        [ROOT / "benchmarks" / "gpu" / "fidelity.sh", "drawn", "--epochs", "50"],
        env={**os.environ, **places, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: (os.setsid(), signal.signal(signal.SIGINT, signal.default_int_handler)),
    )
    log, until = tmp_path / "drawn-1" / "log.jsonl", time.monotonic() + 120
    while not log.is_file() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(process.pid, number)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 130, told
    best = checkpoint.best_checkpoint(tmp_path / "drawn-1")
    assert f"{best.name} is in {tmp_path / 'out'}/drawn-1.part-*" in told
    assert (tmp_path / "out" / "drawn-1.sha256").is_file()


def test_the_preset_must_be_named(tmp_path):
    refused = fidelity(tmp_path, "")
    assert refused.returncode == 2
    assert "the name of a preset is missing" in refused.stderr
