"""`docker/test.sh`, with a `docker` and a Python that only note what they are asked."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BASH = shutil.which("bash")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A folder with what the script asked of Python and Docker, and its file for compose."""
    programs = {
        "docker": f"""echo "$*" >> {tmp_path}/docker-asked
for given; do case $given in */test.yml) cp "$given" {tmp_path};; esac; done
exit 1""",
        "python": f'echo "$*" >> {tmp_path}/python-asked',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!{BASH}\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHON": str(tmp_path / "python"),
        "TMPDIR": str(tmp_path),
    }
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


def test_torch_is_fetched_for_the_python_of_the_image(ran):
    dockerfile = (ROOT / "docker" / "training.Dockerfile").read_text()
    (version,) = re.findall(r"^FROM python:(\d+\.\d+)-", dockerfile, re.MULTILINE)
    asked = (ran / "python-asked").read_text()
    assert f" --python-version {version} --only-binary :all: " in asked
