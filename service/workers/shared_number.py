"""A number that every process of a service sees at once: a file that all of them have mapped."""

import mmap
from pathlib import Path

BYTES = 8


class SharedNumber:
    """One process writes it; the others read it without asking that one, and see no number but those written.

    Args:
        path: a file of 8 bytes, see `make`.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = memoryview(mmap.mmap(file.fileno(), BYTES)).cast("Q")

    @staticmethod
    def make(path: Path) -> None:
        """Write the file; the number is 0."""
        path.write_bytes(bytes(BYTES))

    @property
    def value(self) -> int:
        """0 before the first writing."""
        return self._shared[0]

    @value.setter
    def value(self, number: int) -> None:
        self._shared[0] = number
