"""benchmarks/gpu/first_contact.sh on the CPU."""

import os
import subprocess
import sys

from tests.support.live_service import free_port
from tests.support.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu" / "first_contact.sh"


def test_a_part_that_it_has_not_is_refused_with_those_it_has(tmp_path):
    ran = subprocess.run(
        [SCRIPT, "answers", "ls"], env={**os.environ, "OUT": str(tmp_path)}, capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "there is no part ls; there are tests, speed, routing and answers" in ran.stderr


def test_its_service_reads_the_photograph_and_stops(tmp_path):
    places = {"PYTHON": sys.executable, "OUT": str(tmp_path), "PORT": str(free_port()), "DEVICE": "cpu"}
    settings = {"CAPSNET_OPTIMIZE": "false", "CAPSNET_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run(
        [SCRIPT, "answers"],
        env={**os.environ, **places, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    log = (tmp_path / "first_contact.log").read_text()
    assert ran.returncode == 0
    assert ran.stdout == log
    assert '"label":"7","labels":["7"]' in log
    assert '"reconstructions":[{' in log
    assert log.endswith("-- answers ended with status 0\n")
