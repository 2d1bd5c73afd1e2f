"""What the training sidecar's script does for a preset; capsnet-train and capsnet-export are stand-ins."""

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.live_service import wait_until
from tests.support.paths import ROOT

SCRIPT = ROOT / "docker" / "train_and_publish.py"


@pytest.fixture
def calls(tmp_path):
    """Runs the script in a folder of its own; gives the commands that it ran.

    With `settings`, variables of its environment; with `fails`, the program that ends with an error; with
    `stops`, the program during which a signal stops the script, and which goes on to its end; with `status`,
    how the script ends.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    does = {
        name: f'echo {name} "$@" >> "$CALLS"; test "$FAILS" != {name}'
        for name in ("capsnet-train", "capsnet-export", "torchrun")
    }
    for name, what in {**does, "python": f'exec "{sys.executable}" "$@"'}.items():
        stops = f"""if [ "$STOPS" = {name} ]; then trap '' TERM; kill -TERM "$SCRIPT"; fi"""
        (programs / name).write_text(f"#!/bin/sh\n{stops}\n{what}\n")
        (programs / name).chmod(0o755)

    def run(preset: str, fails: str = "", stops: str = "", status: int = 0, **settings: str) -> list[str]:
        Path(f"{tmp_path}/runs/some/{preset}").mkdir(parents=True, exist_ok=True)  # as `fit` does
        log = tmp_path / "calls"
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(SCRIPT.parents[1]),
            "CALLS": str(log),
            "CAPSNET_DATA": str(tmp_path / "data"),
            "CAPSNET_PRESET": preset,
            "CAPSNET_MODEL_NAME": "some",
            "FAILS": fails,
            "STOPS": stops,
            **settings,
        }
        log.touch()
        command = ["bash", "-c", 'SCRIPT=$$ exec "$0" "$1"', sys.executable, SCRIPT]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, timeout=60)
        assert done.returncode == status
        said = log.read_text().splitlines()
        log.unlink()
        return said

    return run


@pytest.mark.parametrize(
    ("preset", "brings"),
    [
        ("drawn", []),
        ("mnist-short", ["capsnet-train download mnist"]),
        ("multimnist-small", ["capsnet-train download mnist"]),
        ("matrix-toys", ["capsnet-train make toys"]),
        ("svhn", ["capsnet-train download svhn"]),
    ],
)
def test_data_is_brought_the_network_trained_and_published(calls, preset, brings):
    run = f"runs/some/{preset}"
    assert calls(preset) == [
        *brings,
        f"capsnet-train fit --preset {preset} --out {run}",
        f"capsnet-export bundle {run} --out models/some",
    ]


def test_a_preset_of_ones_own_is_taken_by_its_path(calls, tmp_path):
    preset = tmp_path / "mine.toml"
    preset.write_text((ROOT / "training" / "presets" / "drawn.toml").read_text())
    run = f"runs/some{preset}"
    assert calls(str(preset)) == [
        f"capsnet-train fit --preset {preset} --out {run}",
        f"capsnet-export bundle {run} --out models/some",
    ]


def test_toys_that_are_there_are_not_made_again(calls, tmp_path):
    (tmp_path / "data" / "toys").mkdir(parents=True)
    assert calls("matrix-toys")[0] == "capsnet-train fit --preset matrix-toys --out runs/some/matrix-toys"


def test_several_machines_train_by_torchrun_and_one_that_is_started_again_waits_for_nobody(calls):
    run = "runs/some/drawn"
    torchrun = f"torchrun -m training.cli fit --preset drawn --out {run}"
    bundle = f"capsnet-export bundle {run} --out models/some"
    assert calls("drawn", PET_NNODES="2", fails="torchrun", status=1) == [torchrun]
    assert calls("drawn", PET_NNODES="2", fails="capsnet-export", status=1) == [torchrun, bundle]
    assert calls("drawn", PET_NNODES="2") == [bundle]
    assert calls("drawn", PET_NNODES="2") == []


def test_a_signal_that_comes_while_nothing_can_be_stopped_stops_what_would_follow(calls):
    assert calls("drawn", stops="python", status=143) == []
    download = "capsnet-train download mnist"
    assert calls("mnist-short", stops="capsnet-train", status=143) == [download]


def test_what_is_published_when_a_signal_comes_is_not_published_again(calls):
    run = "runs/some/drawn"
    bundle = f"capsnet-export bundle {run} --out models/some"
    assert calls("drawn", stops="capsnet-export")[-1] == bundle
    assert calls("drawn") == []


def test_machines_that_share_the_folders_publish_once(calls, tmp_path):
    run = tmp_path / "runs" / "some" / "drawn"
    run.mkdir(parents=True)
    with ThreadPoolExecutor() as pool, (run / ".publishing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another machine publishes
        waiting = pool.submit(calls, "drawn", PET_NNODES="2")
        wait_until((run / "trained").exists)
        (run / "published").write_text("models/some")
        lock.close()
        assert [line.split()[0] for line in waiting.result()] == ["torchrun"]
