"""Which versions serve: a table that the engine process sends to every worker, and its generation.

The generation is a number in a file that all processes have mapped. The engine process raises it and then
sends the table. A worker whose table is older waits for the new one before it answers. So from one moment on
every new request gets the new version: no client sees version 3 and then version 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from export.contract.manifest import Manifest
from service.models.traffic import Rule, find


class Facts(NamedTuple):
    """A loaded version.

    Attributes:
        key: no other loading of any version has it.
        manifest: of its bundle.
    """

    key: int
    name: str
    version: int
    manifest: Manifest


@dataclass(frozen=True)
class Table:
    """The versions that serve.

    Attributes:
        generation: each table has a greater one than those before it.
        default: the model of requests that name none; None where one must be named.
        versions: by model and number.
        traffic: the rules that hold, of models that have one.
    """

    generation: int
    default: str | None
    versions: Mapping[str, Mapping[int, Facts]]
    traffic: Mapping[str, Rule]

    def find(self, model: str | None, version: int | None) -> Facts | None:
        """The version that a request means, None where it is not loaded."""
        name = self.default if model is None else model
        return None if name is None else find(self.traffic.get(name), self.versions.get(name, {}), version)

    def keys(self) -> set[int]:
        """Of all versions."""
        return {facts.key for versions in self.versions.values() for facts in versions.values()}
