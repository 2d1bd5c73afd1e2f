"""Published versions, which must not change: nothing else is written into one."""

import os
from pathlib import Path

from export.contract.manifest import MANIFEST_FILE, VERSION, BundleError


def refuse_in_published(out: Path) -> None:
    """Refuse a folder that is a published version, or is in one, wherever links lead.

    Raises:
        BundleError: it is.
    """
    place = Path(os.path.realpath(out))
    for folder in (place, *place.parents):
        if VERSION.fullmatch(folder.name) and (folder / MANIFEST_FILE).is_file():
            raise BundleError(f"--out {out} is in a published version, which must not change: {folder}")
