"""benchmarks/gpu/first_contact.sh on the CPU."""

import os
import subprocess
import sys

from tests.support.live_service import free_port
from tests.support.places import ROOT


def test_its_service_reads_the_photograph_and_stops(tmp_path):
    script = ROOT / "benchmarks" / "gpu" / "first_contact.sh"
    places = {"PYTHON": sys.executable, "OUT": str(tmp_path), "PORT": str(free_port()), "DEVICE": "cpu"}
    settings = {"CAPSNET_OPTIMIZE": "false", "CAPSNET_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run(
        [script, "answers"],
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
