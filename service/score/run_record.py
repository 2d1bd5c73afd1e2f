"""The record of a run, with which a killed run can be resumed: what it computes, and how far it is.

The order of the pictures depends only on their names and places. So a count says which of them are done, and
a hash of their names whether they are still the same, without a million names in memory.
"""

import hashlib
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from export.contract.atomic_file import write_atomically
from service.score.picture_stream import PictureStream, row_names
from service.score.query import ScoreError
from service.score.table import Format, to_bytes


class RunSpec(BaseModel):
    """What determines the rows of a run; a run can only be resumed with the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    version: int
    digest: str
    top_k: int | None
    preprocess: Literal["auto", "off"]
    poses: bool
    min_probability: float | None
    format: Format
    image_column: str | None
    id_column: str | None
    views: int


class Record(BaseModel):
    """How far a run is.

    Attributes:
        spec: what determines its rows.
        pictures: number of pictures done, with or without a row; a pair of views counts once.
        labels: number of rows of each label.
        names_sha256: hash of the names of the pictures done, see `NamesHash`.
        rows_bytes: length of the table, or of the JSON lines that will become Parquet.
        errors_bytes: length of the errors.
        errors: the file of the errors, from the table's folder, quoted as in an address; None if it is the
            one beside the table.
        finished: whether all pictures are done.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: RunSpec
    pictures: int = Field(default=0, ge=0)
    labels: dict[str, int] = {}
    names_sha256: str = ""
    rows_bytes: int = Field(default=0, ge=0)
    errors_bytes: int = Field(default=0, ge=0)
    errors: str | None = None
    finished: bool = False

    @property
    def scored(self) -> int:
        """Number of pictures with a row."""
        return sum(self.labels.values())

    @property
    def skipped(self) -> int:
        """Number of pictures without a row."""
        return self.pictures - self.scored


class NamesHash:
    """SHA-256 of names in order, each followed by a zero byte, which no name contains."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str) -> None:
        """Add the next name."""
        self._hash.update(to_bytes(name) + b"\0")

    def hexdigest(self) -> str:
        """The hash of the names so far."""
        return self._hash.hexdigest()


def read_record(path: Path) -> Record:
    """The record in a file.

    Raises:
        ScoreError: the file holds none.
    """
    try:
        return Record.model_validate_json(path.read_bytes())
    except ValidationError:
        raise ScoreError(
            f"{path} is no record of a run of this version of capsnet-score; --overwrite starts over"
        ) from None


def write_record(path: Path, record: Record) -> None:
    """Replace the record atomically: at any time the file holds the old record or the new one."""
    write_atomically(path, record.model_dump_json(indent=2) + "\n")


def check_same_spec(previous: RunSpec, current: RunSpec, out: str) -> None:
    """Check that a run can be resumed with this spec.

    Raises:
        ScoreError: it was started with another; names the differences.
    """
    before, now = previous.model_dump(), current.model_dump()
    differing = [
        f"{name} was {before[name]}, now {now[name]}" for name in before if before[name] != now[name]
    ]
    if differing:
        raise ScoreError(f"{out} cannot be resumed: {'; '.join(differing)}; --overwrite starts over")


def skip_done(pictures: PictureStream, record: Record, out: str) -> NamesHash:
    """Take the pictures that are done off the stream; returns the hash of their names.

    Raises:
        ScoreError: they are not the pictures of the record.
    """
    names, found = NamesHash(), 0
    for name in islice(row_names(pictures, record.spec.views), record.pictures):
        names.add(name)
        found += 1
    if found == record.pictures and names.hexdigest() == record.names_sha256:
        return names
    difference = f"there are only {found}" if found < record.pictures else "their names have changed"
    raise ScoreError(
        f"{out} cannot be resumed: {record.pictures} pictures were done, and now {difference}; "
        "name the same pictures, or start over with --overwrite"
    )
