"""A version on disk or in memory, and what has become of it."""

from typing import Literal, NamedTuple

State = Literal["loaded", "available", "loading", "superseded", "refused", "unloaded"]
SERVABLE = frozenset({"loaded", "loading", "available"})  # states of versions that answer, or will when asked


class IndexEntry(NamedTuple):
    """A version and what has become of it.

    Attributes:
        state: `superseded` by as many newer versions as are served.
        reason: why it is not served; of a loaded version whose files have changed, why they would not be.
    """

    name: str
    version: int
    state: State
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        """Its files cannot be served as they are now; a loaded version serves on as they were."""
        return self.state == "refused" or (self.state == "loaded" and bool(self.reason))
