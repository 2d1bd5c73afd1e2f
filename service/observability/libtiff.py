"""Messages of libtiff, which Pillow decodes TIFF files with."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_libtiff() -> Iterator[None]:
    """Keep libtiff from printing its errors on standard error; Pillow raises them, too.

    They are printed past every logger, and their texts come from strangers' files.
    """
    from PIL import _imaging  # late, so that --help answers at once

    try:
        # Found in the library that Pillow has loaded; where libtiff is linked into Pillow, it is not found.
        handle_errors_with = ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler
    except (AttributeError, OSError):
        yield
        return
    handle_errors_with.argtypes = [ctypes.c_void_p]
    handle_errors_with.restype = ctypes.c_void_p
    before = handle_errors_with(None)
    try:
        yield
    finally:
        handle_errors_with(before)
