"""What the training sidecar's script does for a preset; capsnet-train and capsnet-export are stand-ins."""

import os
import subprocess
import sys

import pytest

from tests.support.places import ROOT

SCRIPT = ROOT / "docker" / "train-and-publish.sh"


@pytest.fixture
def calls(tmp_path):
    """Runs the script in a folder of its own; gives the commands that it ran."""
    programs = tmp_path / "bin"
    programs.mkdir()
    does = {name: f'echo {name} "$@" >> "$CALLS"' for name in ("capsnet-train", "capsnet-export")}
    for name, what in {**does, "python": f'exec "{sys.executable}" "$@"'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{what}\n")
        (programs / name).chmod(0o755)

    def run(preset: str) -> list[str]:
        (tmp_path / "runs" / "some" / preset).mkdir(parents=True, exist_ok=True)  # as `fit` does
        log = tmp_path / "calls"
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(SCRIPT.parents[1]),
            "CALLS": str(log),
            "CAPSNET_DATA": str(tmp_path / "data"),
            "CAPSNET_PRESET": preset,
            "CAPSNET_MODEL_NAME": "some",
        }
        subprocess.run(["bash", SCRIPT], cwd=tmp_path, env=environment, check=True, timeout=60)
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


def test_toys_that_are_there_are_not_made_again(calls, tmp_path):
    (tmp_path / "data" / "toys").mkdir(parents=True)
    assert calls("matrix-toys")[0] == "capsnet-train fit --preset matrix-toys --out runs/some/matrix-toys"
