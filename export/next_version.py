"""A model's next version in its folder: all of its files at once, or none."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from export.contract.full_disk import naming
from export.contract.manifest import VERSION
from training.runs.checkpoint import sync


def publish_next(out: Path, write: Callable[[Path], None]) -> Path:
    """Publish a folder as the next version of a model.

    Args:
        out: the model's folder; made if it is not there.
        write: writes the version's files into the folder that it is given.

    Returns:
        The version's folder.

    Raises:
        OSError: it cannot be written; names the file or the model's folder, which is gone again if it is new.
        ValueError: the newest version has the largest number that there is.
    """
    is_new = not out.exists()
    try:
        with naming(out):
            out.mkdir(parents=True, exist_ok=True)
            return _write_aside(out, write)
    finally:
        if is_new:
            with suppress(OSError):  # a version is in it
                out.rmdir()


def versions(out: Path) -> list[int]:
    """Numbers of the versions that have been published in a model's folder."""
    return [int(path.name) for path in out.iterdir() if VERSION.fullmatch(path.name)]


def _write_aside(out: Path, write: Callable[[Path], None]) -> Path:
    """Write a version into a hidden folder and rename that; it is gone if anything fails."""
    aside = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=out))
    try:
        write(aside)
        aside.chmod(0o755)  # mkdtemp makes it private
        sync(aside)
        return _rename_to_next_version(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _rename_to_next_version(aside: Path, out: Path) -> Path:
    """Give the finished folder its number; the next one if another publisher was faster."""
    version = 1 + max(versions(out), default=0)
    while True:
        if not VERSION.fullmatch(str(version)):
            raise ValueError(f"{out}: no version after {version - 1}")
        try:
            published = aside.rename(out / str(version))
        except OSError:  # a version's folder is never empty, so rename cannot replace one
            if not (out / str(version)).exists():
                raise
            version += 1
        else:
            sync(out)
            return published
