"""`docker/test.sh`, with a `docker` that only notes what it is asked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BASH = shutil.which("bash")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A folder with what the script asked of Docker, and its file for compose."""
    docker = tmp_path / "docker"
    docker.write_text(f"""#!{BASH}
echo "$*" >> {tmp_path}/docker-asked
for given; do case $given in */test.yml) cp "$given" {tmp_path};; esac; done
exit 1
""")
    docker.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": "true", "TMPDIR": str(tmp_path)}
    result = subprocess.run(
        [BASH, ROOT / "docker" / "test.sh"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 1
    return tmp_path


def test_the_settings_of_whoever_runs_it_are_not_read(ran):
    asked = [line for line in (ran / "docker-asked").read_text().splitlines() if line.startswith("compose ")]
    assert len(asked) > 1
    assert all(line.startswith("compose --env-file /dev/null ") for line in asked)
    assert "\n  service:\n    env_file: !reset []\n" in (ran / "test.yml").read_text()
