"""The pages name files of the repository that are there."""

import re

import pytest

from tests.support.code_blocks import pages
from tests.support.paths import ROOT

# With its folder: `service/app.py`, `training/presets`; not what a command writes, as `runs/mnist`.
PATH = re.compile(r"`((?:capsnet|training|export|service|benchmarks|docker|tests|docs)/[\w/.-]+)`")
MODULE = re.compile(r"python -m ((?:docs|benchmarks|training|export)[\w.]*)")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_module_that_a_page_names_is_there(page):
    text = page.read_text()
    for path in PATH.findall(text):
        assert (ROOT / path).exists(), path
    for module in MODULE.findall(text):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or place.is_dir(), module


def test_the_architecture_names_the_files_of_a_request_and_of_a_batch():
    named = PATH.findall((ROOT / "docs" / "architecture.md").read_text())
    assert {"service/inference/batcher.py", "training/data/readers", "training/fit/loop.py"} <= set(named)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_link_within_the_repository_leads_to_a_file(name):
    """The builder of the site checks those of its pages."""
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
