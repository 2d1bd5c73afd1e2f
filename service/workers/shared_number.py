"""A number that every process of a service sees at once: a file that all of them have mapped."""

import mmap
import struct
from pathlib import Path

NUMBER = struct.Struct("=Q")


class SharedNumber:
    """One process writes it; the others read it without asking that one.

    Args:
        path: a file of 8 bytes, see `make`.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), NUMBER.size)

    @staticmethod
    def make(path: Path) -> None:
        """Write the file; the number is 0."""
        path.write_bytes(bytes(NUMBER.size))

    @property
    def value(self) -> int:
        """0 before the first writing."""
        number: int = NUMBER.unpack_from(self._shared)[0]
        return number

    @value.setter
    def value(self, number: int) -> None:
        NUMBER.pack_into(self._shared, 0, number)
