"""What holds while a service runs, even if the process that has its models is replaced meanwhile."""

import json
import logging
import time
from pathlib import Path

from export.contract.atomic_file import write_atomically

NAMED_S = 600.0  # so long after the last request that named it a version stays loaded
NOTED_EVERY_S = 60.0  # a later request that names it is noted in the file after this time

log = logging.getLogger(__name__)


class Remembered:
    """Models that an operator has taken down, and versions that requests have named.

    All methods belong to the event loop. With several processes a file has all of it: the next engine process
    begins with what the one before it knew.

    Args:
        file: None: there is one process.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._unloaded: set[str] = set()
        self._named_s: dict[tuple[str, int], float] = {}  # by the monotonic clock, which all processes share
        self._noted_s: dict[tuple[str, int], float] = {}  # the same, as the file has it
        if file and file.exists():
            known = json.loads(file.read_text())
            self._unloaded = set(known["unloaded"])
            self._named_s = {(model, version): named_s for model, version, named_s in known["named"]}

    @property
    def unloaded(self) -> frozenset[str]:
        """Models that were taken down and have not been loaded since."""
        return frozenset(self._unloaded)

    def take_down(self, model: str) -> None:
        """It stays down until `bring_back`, and then nothing is known of requests before."""
        self._unloaded.add(model)
        self._named_s = {key: named_s for key, named_s in self._named_s.items() if key[0] != model}
        self._write()

    def bring_back(self, model: str) -> None:
        """It may be loaded again."""
        self._unloaded.discard(model)
        self._write()

    def name(self, model: str, version: int) -> None:
        """A request has named this version."""
        now_s = time.monotonic()
        self._named_s[model, version] = now_s
        if self._file and now_s - self._noted_s.get((model, version), -NOTED_EVERY_S) >= NOTED_EVERY_S:
            self._write()

    def is_named(self, model: str, version: int) -> bool:
        """Whether requests have named this version of late."""
        named_s = self._named_s.get((model, version))
        return named_s is not None and time.monotonic() - named_s < NAMED_S

    def _write(self) -> None:
        self._named_s = {key: named_s for key, named_s in self._named_s.items() if self.is_named(*key)}
        if self._file is None:
            return
        named = [(*key, named_s) for key, named_s in self._named_s.items()]
        try:
            write_atomically(self._file, json.dumps({"unloaded": sorted(self._unloaded), "named": named}))
        except OSError as error:
            log.warning("the next engine process will not know what this one does: %s", error)
        self._noted_s = dict(self._named_s)
