"""Which labels of a model have a series of their own: the first that any process of a service meets."""

import json
from contextlib import suppress
from pathlib import Path

from service.file_lock import locked

MAX_LABELS = 100  # of each model: a bundle may have a hundred thousand classes


class LabelRoom:
    """Room for `MAX_LABELS` labels of each model. Belongs to one thread.

    Processes note the labels in a file, so that all take the same ones, also one that replaces another. It is
    read once for each label while there is room.

    Args:
        shared: the file; None: there is one process.
    """

    def __init__(self, shared: Path | None) -> None:
        self._shared = shared
        self._taken: dict[str, set[str]] = {}

    def takes(self, model: str, label: str) -> bool:
        """Whether there is room for this label, which is then kept for it."""
        if self._is_decided(model, label):
            return label in self._of(model)
        if self._shared is None:
            self._of(model).add(label)
            return True
        with suppress(OSError), locked(self._shared) as file:  # a full disk costs nothing but agreement
            file.seek(0)
            for line in file:
                self._note(line)
            if not self._is_decided(model, label):
                self._of(model).add(label)
                file.write(json.dumps([model, label]).encode() + b"\n")
        if not self._is_decided(model, label):
            self._of(model).add(label)
        return label in self._of(model)

    def _of(self, model: str) -> set[str]:
        return self._taken.setdefault(model, set())

    def _is_decided(self, model: str, label: str) -> bool:
        taken = self._of(model)
        return label in taken or len(taken) >= MAX_LABELS

    def _note(self, line: bytes) -> None:
        with suppress(ValueError):  # of a process that could not write all of it
            model, label = json.loads(line)
            self._of(model).add(label)
