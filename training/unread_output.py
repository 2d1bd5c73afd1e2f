"""Output that nobody reads any more does not end a training: its terminal is closed, or `tee` has ended."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any, cast

NOBODY_READS = {errno.EPIPE, errno.EIO}  # of a pipe; of a terminal


class _PatientStream:
    """A stream that goes silent when nobody reads it any more."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._write_to_nobody(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._write_to_nobody(error)

    def _write_to_nobody(self, error: OSError) -> None:
        """From now on, what is still in the buffer, too; raises what is another error."""
        if error.errno not in NOBODY_READS:
            raise error
        nobody = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nobody, self._stream.fileno())
        os.close(nobody)


@contextmanager
def unread_output_ignored() -> Iterator[None]:
    """While it lasts, what is printed for nobody is lost and raises no error."""
    with Path(os.devnull).open("w") as nobody:  # Python has None for what was closed before it began
        streams = [cast(IO[str], _PatientStream(stream or nobody)) for stream in (sys.stdout, sys.stderr)]
        with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
            try:
                yield
            finally:
                for stream in streams:
                    stream.flush()
