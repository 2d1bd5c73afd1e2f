import subprocess

import pytest
import torch

from training.config import MatrixCapsNetConfig, OptimizerConfig, RunConfig
from training.runs import provenance


@pytest.mark.parametrize("has", [True, False])
def test_the_hardware_says_what_convolutions_are_trained_in(has, monkeypatch):
    monkeypatch.setattr(provenance, "has_bfloat16_instructions", lambda: has)
    named = provenance.hardware(torch.device("cpu"), RunConfig())
    assert f"{torch.get_num_threads()} threads, torch {torch.__version__}" in named
    assert ("convolutions in bfloat16" in named) == has


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(model=MatrixCapsNetConfig("matrix-capsnet")),
        RunConfig(optimizer=OptimizerConfig(trained_part="decoder")),
    ],
    ids=["matrix capsules", "a decoder alone"],
)
def test_where_no_convolution_is_trained_in_bfloat16_none_is_named(config, monkeypatch):
    monkeypatch.setattr(provenance, "has_bfloat16_instructions", lambda: True)
    assert "bfloat16" not in provenance.hardware(torch.device("cpu"), config)


def test_the_commit_of_another_project_around_an_installed_package_is_not_its_own(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    installed = tmp_path / "provenance.py"
    installed.write_text("")
    monkeypatch.delenv("CAPSNET_COMMIT", raising=False)
    monkeypatch.setattr(provenance, "__file__", str(installed))
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    assert provenance.source_commit() == "unknown"
    git("add", "provenance.py")
    git("commit", "--quiet", "--message", "second")
    assert provenance.source_commit() == git("rev-parse", "HEAD")
