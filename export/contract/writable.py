"""Whether a file or a folder can be written, asked before hours of work for it."""

import errno
import os
from pathlib import Path


def check_writable(path: Path) -> None:
    """Check that a file or folder can be written, or made where it is not.

    Raises:
        OSError: it cannot; names what is in the way.
    """
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not there.exists():
        raise FileNotFoundError(errno.ENOENT, "a link that leads nowhere", str(there))
    if there != path and not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY:  # Windows has none
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(there))
    if not os.access(there, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))
