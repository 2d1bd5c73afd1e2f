"""`.ci/run`, with a `make` and a `docker` that do what a test tells them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CI = ROOT / ".ci"
TOOLS = ("bash", "cat", "dirname", "env", "mktemp", "rm", "tee")
ALLOWED = "SKIPPED [2] tests/training/fit/test_step.py:160: there is no CUDA device here\n"
PASSED = "===== 7 passed, 2 skipped in 1.00s =====\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that passes all its tests and skips two, on a machine without Docker."""
    folder = tmp_path / "checkout"
    shutil.copytree(CI, folder / ".ci")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    program(tmp_path, "python3", f'exec {sys.executable} "$@"')
    program(tmp_path, "make", f"echo made $1; if [ $1 = test ]; then cat {tmp_path}/output; fi")
    (tmp_path / "output").write_text(ALLOWED + PASSED)
    return folder


def program(folder: Path, name: str, script: str) -> None:
    """A program of that name, before all others."""
    file = folder / "bin" / name
    file.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    file.chmod(0o755)


def run(checkout: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(checkout.parent / "bin"), "TMPDIR": str(checkout.parent)}
    return subprocess.run(["bash", checkout / ".ci" / "run"], env=environment, capture_output=True, text=True)


def test_where_tests_pass_and_there_is_no_docker_it_passes_and_says_so(checkout):
    ran = run(checkout)
    assert ran.returncode == 0, ran.stderr
    assert "no Docker engine here" in ran.stdout


def test_what_the_tests_of_the_playground_run_is_installed_where_it_is_missing(checkout):
    program(checkout.parent, "id", "echo 0")
    program(checkout.parent, "apt-get", f"echo $* >> {checkout.parent}/asked")
    assert run(checkout).returncode == 0
    assert (checkout.parent / "asked").read_text().endswith(" chromium npm\n")
    program(checkout.parent, "chromium", "exit 1")
    (checkout.parent / "asked").unlink()
    run(checkout)
    assert (checkout.parent / "asked").read_text().endswith(" npm\n")
    program(checkout.parent, "npm", "exit 1")
    (checkout.parent / "asked").unlink()
    run(checkout)
    assert not (checkout.parent / "asked").exists()


def test_it_fails_where_the_tests_do(checkout):
    program(checkout.parent, "make", "exit 2")
    assert run(checkout).returncode == 2


def test_a_skip_that_is_not_listed_fails_and_is_named(checkout):
    other = "SKIPPED [1] tests/training/data/readers/test_mnist.py:9: the moon is full\n"
    (checkout.parent / "output").write_text(ALLOWED + other + PASSED.replace("2 skipped", "3 skipped"))
    ran = run(checkout)
    assert ran.returncode == 1
    assert "the moon is full" in ran.stderr
    assert "CUDA" not in ran.stderr


@pytest.mark.parametrize(
    "why",
    [
        "the playground needs npm: npm cannot install the playground's runtime: npm error code ECONNREFUSED",
        "Triton is not installed; `pip install triton==3.9.0` adds it with its interpreter",
    ],
)
def test_what_a_machine_cannot_get_or_hold_may_be_skipped(checkout, why):
    skipped = f"SKIPPED [1] tests/a.py:7: {why}\n"
    (checkout.parent / "output").write_text(skipped + "===== 7 passed, 1 skipped in 1.00s =====\n")
    assert run(checkout).returncode == 0


def test_skips_that_are_not_shown_fail(checkout):
    (checkout.parent / "output").write_text(PASSED)
    ran = run(checkout)
    assert (ran.returncode, "it needs -rs" in ran.stderr) == (1, True)


def test_every_listed_skip_has_a_reason():
    lines = (CI / "allowed-skips").read_text().splitlines()
    assert all(line.startswith("#") or len(line.split("  # ")) == 2 for line in lines)


def test_an_engine_that_answers_is_tested(checkout):
    program(checkout.parent, "docker", "exit 0")
    assert "made docker-test" in run(checkout).stdout


@pytest.mark.parametrize("starts", [True, False])
def test_an_engine_that_shared_brings_has_to_start(checkout, starts):
    script = checkout.parent / "shared" / "tools" / "docker-engine.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"exit {0 if starts else 3}\n")
    program(checkout.parent, "docker", "exit 1")
    ran = run(checkout)
    assert ran.returncode == (0 if starts else 1)
    assert ("made docker-test" in ran.stdout) == starts
    assert ("the Docker engine does not start" in ran.stderr) != starts


def test_the_image_of_the_service_is_built_beside_the_tests_and_its_own_engine_is_stopped(checkout):
    asked = checkout.parent / "asked"
    script = checkout.parent / "shared" / "tools" / "docker-engine.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"echo engine $* >> {asked}\n")
    program(checkout.parent, "docker", f"echo docker $* >> {asked}; [ $1 != info ]")
    program(
        checkout.parent,
        "make",
        f"echo made $1 >> {asked}; if [ $1 = test ]; then cat {checkout.parent}/output; fi",
    )
    assert run(checkout).returncode == 0
    lines = [line.strip() for line in asked.read_text().splitlines()]
    built = lines.index("docker compose --project-name capsnet-test build service")
    assert lines.index("engine") < built < lines.index("made docker-test")
    assert lines[-1] == "engine stop"


def test_an_installed_engine_that_does_not_answer_fails(checkout):
    for name in ("docker", "dockerd"):
        program(checkout.parent, name, "exit 1")
    ran = run(checkout)
    assert ran.returncode == 1
    assert "is installed here and does not answer" in ran.stderr
