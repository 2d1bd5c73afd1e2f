"""The image of the service: the code that the service imports, and none that trains or exports."""

import re
from pathlib import Path

import grimp
import pytest

from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "docker" / "service.Dockerfile").read_text()
OURS = ("capsnet", "export", "service", "training")
STARTED = ("service", "export.optimize.__main__")  # the service runs the second in a process of its own


def imported() -> set[Path]:
    """The files of ours that the service imports, directly or not."""
    graph = grimp.build_graph(*OURS)
    left = [name for name in graph.modules for first in STARTED if f"{name}.".startswith(f"{first}.")]
    found: set[str] = set()
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += graph.find_modules_directly_imported_by(name)
            left += [name.rpartition(".")[0]] if "." in name else []  # its package's __init__
    paths = [Path(*name.split(".")) for name in found]
    return {path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py") for path in paths}


def copied() -> set[Path]:
    """The files of ours that the image's stage `code` copies."""
    _, _, rest = DOCKERFILE.partition("FROM scratch AS code\n")
    instructions, _, _ = rest.partition("\nFROM ")
    found: set[Path] = set()
    for source, target in re.findall(r"^COPY (\S+) (\S+)$", instructions, re.MULTILINE):
        place = ROOT / source
        assert target in {source, f"{Path(source).parent}/"}
        found |= {file.relative_to(ROOT) for file in ([place] if place.is_file() else place.rglob("*.py"))}
    return found


def test_the_image_holds_all_that_the_service_imports():
    assert Path("service/cli.py") in imported()
    assert imported() <= copied()


def test_the_image_holds_no_code_that_trains_or_exports():
    assert not {path for path in copied() if path.parts[0] == "training"}
    exporting = {file.relative_to(ROOT) for file in (ROOT / "export").glob("*.py")}
    assert copied() & exporting == {Path("export/__init__.py")}


def test_every_command_that_the_image_keeps_can_work_there():
    removed = set(re.findall(r"/opt/capsnet/bin/(capsnet-\w+)", DOCKERFILE))
    assert removed == {"capsnet-train", "capsnet-export"}


def test_what_an_image_keeps_of_the_checkout_is_readable_whatever_its_umask():
    training = (ROOT / "docker" / "training.Dockerfile").read_text()
    assert "\nCOPY --chmod=755 models models\n" in DOCKERFILE
    assert "\nCOPY --chmod=755 docker/train_and_publish.py " in training


@pytest.mark.parametrize("image", ["service", "training"])
def test_what_an_image_copies_is_not_ignored(image):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = re.findall(
        r"^COPY (?:--chmod=755 )?([\w./-]+) ",
        (ROOT / "docker" / f"{image}.Dockerfile").read_text(),
        re.MULTILINE,
    )
    assert ignored[:2] == ["# Only what the images are made of.", "*"]
    for source in sources:
        assert {f"!{source}", f"!{Path(source).parts[0]}"} & set(ignored), source
