"""capsnet-score, started without standard streams, as some daemons and `2>&-` start programs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_pictures import random_png
from tests.support.tiny_bundle import write_bundle

SCORE = [sys.executable, "-m", "service.score", "--local"]


@pytest.fixture
def here(tmp_path) -> Path:
    write_bundle(tmp_path / "models" / "tiny" / "1")
    (tmp_path / "a.png").write_bytes(random_png())
    return tmp_path


def score(here: Path, *arguments: str, closed: str) -> subprocess.CompletedProcess[str]:
    command = [*SCORE, "--models", str(here / "models"), "--model", "tiny", *arguments]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
    return subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_without_stderr_the_table_is_written_whole(here, closed):
    done = score(here, str(here / "a.png"), "--out", str(here / "a.csv"), closed=closed)
    assert done.returncode == 0
    header, row = (here / "a.csv").read_text().splitlines()
    assert header.startswith("path,label,")
    assert row.startswith(f"{here}/a.png,")


def test_without_stdout_rows_need_a_file(here):
    done = score(here, str(here / "a.png"), closed=">&-")
    assert done.returncode == 2
    assert (
        done.stderr == "capsnet-score: stdout, where the rows would go, is closed; name a file with --out\n"
    )


def test_without_stdin_there_is_no_list_on_it(here):
    done = score(here, "--files-from", "-", "--out", str(here / "a.csv"), closed="<&-")
    assert done.returncode == 2
    assert done.stderr == "capsnet-score: stdin, where the list would come from, is closed\n"
